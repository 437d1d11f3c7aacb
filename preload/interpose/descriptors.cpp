// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Hooks of the C library that close descriptors: for a program adverb's are not there
// (memory/own_fds.h), so that it can close all that it does not know. Everything else goes to the C
// library's own function. Callable from signal handlers, and in a child, whose numbers are its own.
#include "memory/own_fds.h"

#if defined(__x86_64__)

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <dlfcn.h>
#include <pthread.h>

namespace adverb::interpose {
namespace {

// What comes after adverb; null: this C library has none. Looked up by the constructor, as dlsym()
// is nothing for a signal handler.
struct NextClose {
#define DESCRIPTORS(ret, name, node, params) ret(*name) params = nullptr;
#include "interpose/descriptors.def"
};

const NextClose& next_close() noexcept {
  static NextClose found;
  static std::atomic<bool> looked{false};
  if (!looked.load(std::memory_order_acquire)) {
#define DESCRIPTORS(ret, name, node, params)                                                       \
  found.name = reinterpret_cast<decltype(NextClose::name)>(dlsym(RTLD_NEXT, #name));
#include "interpose/descriptors.def"
    looked.store(true, std::memory_order_release);
  }
  return found;
}

__attribute__((constructor)) void look_up_close() {
  next_close();
}

// Calls `close(first, last)` for each run of numbers from `first` to `last` that holds none of
// adverb's; stops where it does not return 0, and returns what it did.
template <typename Close> int between_ours(unsigned first, unsigned last, Close&& close) noexcept {
  for (;;) {
    const size_t ours = own_fds::next_from(first);
    if (ours == own_fds::known_max || ours > last)
      return close(first, last);
    if (ours > first)
      if (const int rc = close(first, static_cast<unsigned>(ours) - 1); rc != 0)
        return rc;
    if (ours == last)
      return 0;
    first = static_cast<unsigned>(ours) + 1;
  }
}

} // namespace
} // namespace adverb::interpose

using namespace adverb;
using namespace adverb::interpose;

extern "C" __attribute__((visibility("default"))) int adverb_hook_close(int fd) __asm__("close");
extern "C" __attribute__((visibility("default"))) int
adverb_hook_close_range(unsigned first, unsigned last, int flags) noexcept __asm__("close_range");
extern "C" __attribute__((visibility("default"))) void adverb_hook_closefrom(int low) noexcept
    __asm__("closefrom");

int adverb_hook_close(int fd) {
  if (own_fds::has(fd)) {
    pthread_testcancel(); // as close(2) is one of the places where a thread is cancelled
    errno = EBADF;
    return -1;
  }
  return next_close().close(fd);
}

int adverb_hook_close_range(unsigned first, unsigned last, int flags) noexcept {
  if (next_close().close_range == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  if (first > last || own_fds::next_from(first) > last)
    return next_close().close_range(first, last, flags);
  return between_ours(first, last, [&](unsigned from, unsigned to) {
    return next_close().close_range(from, to, flags);
  });
}

void adverb_hook_closefrom(int low) noexcept {
  const unsigned first = low > 0 ? static_cast<unsigned>(low) : 0;
  if (own_fds::next_from(first) == own_fds::known_max) {
    if (next_close().closefrom != nullptr)
      next_close().closefrom(low);
    return;
  }
  between_ours(first, UINT_MAX, [](unsigned from, unsigned to) {
    if (to == UINT_MAX && next_close().closefrom != nullptr) {
      next_close().closefrom(static_cast<int>(from));
      return 0;
    }
    if (next_close().close_range != nullptr && next_close().close_range(from, to, 0) == 0)
      return 0;
    for (unsigned fd = from; fd <= to; ++fd) // a kernel before 5.9
      next_close().close(static_cast<int>(fd));
    return 0;
  });
}

#endif
