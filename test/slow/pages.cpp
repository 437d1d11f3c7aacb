// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "pages.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace slow {
namespace {

[[noreturn]] void skip(const char* what) {
  printf("# skip: %s: %s\n", what, strerror(errno));
  fflush(stdout);
  _Exit(SlowPages::skipped);
}

} // namespace

void fill(std::byte* to, size_t bytes, uint64_t value) {
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = (value + i) * 0x9E3779B97F4A7C15ULL;
    memcpy(to + i, &word, std::min<size_t>(8, bytes - i));
  }
}

bool matches(const std::byte* at, size_t bytes, uint64_t value) {
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = (value + i) * 0x9E3779B97F4A7C15ULL;
    if (memcmp(at + i, &word, std::min<size_t>(8, bytes - i)) != 0)
      return false;
  }
  return true;
}

SlowPages::SlowPages(std::byte* first, size_t count) : first_(first), pages_(count) {
  // Also for faults of the kernel's own copies: the loopback device and adverb's fallback make
  // such.
  faults_ = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  if (faults_ < 0)
    skip("userfaultfd");
  uffdio_api api{};
  api.api = UFFD_API;
  if (ioctl(faults_, UFFDIO_API, &api) != 0)
    skip("UFFDIO_API");
  uffdio_register range{};
  range.range = {reinterpret_cast<uintptr_t>(first), count * stride * page_bytes};
  range.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (ioctl(faults_, UFFDIO_REGISTER, &range) != 0)
    skip("UFFDIO_REGISTER");
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  thread_ = std::thread([this] { serve(); });
}

SlowPages::~SlowPages() {
  {
    const std::lock_guard hold(lock_);
    stop_ = true;
  }
  eventfd_write(wake_, 1);
  thread_.join();
  close(faults_); // wakes whoever still waits
  close(wake_);
}

void SlowPages::come_when_asked() {
  {
    const std::lock_guard hold(lock_);
    held_ = false;
  }
  eventfd_write(wake_, 1);
}

void SlowPages::before_each(std::function<void()> call) {
  const std::lock_guard hold(lock_);
  before_each_ = std::move(call);
}

bool SlowPages::wait_asked(size_t many) {
  std::unique_lock hold(lock_);
  return changed_.wait_for(hold, hangs, [&] { return asked_ >= many; });
}

size_t SlowPages::asked() {
  const std::lock_guard hold(lock_);
  return asked_;
}

size_t SlowPages::most_at_once() {
  const std::lock_guard hold(lock_);
  return most_at_once_;
}

void SlowPages::come_now() {
  for (size_t i = 0; i < pages_.size(); ++i)
    come_now(i);
}

void SlowPages::on_fault(uintptr_t address) {
  const size_t which = (address - reinterpret_cast<uintptr_t>(first_)) / (stride * page_bytes);
  std::function<void()> call;
  {
    const std::lock_guard hold(lock_);
    Page& page = pages_[which];
    if (page.state != State::away)
      return; // one more thread waits for it, and is woken with the others
    page.state = State::asked;
    ++asked_;
    most_at_once_ = std::max(most_at_once_, asked_ - here_);
    call = before_each_;
  }
  changed_.notify_all();
  if (call)
    call();
}

void SlowPages::come_now(size_t which) {
  alignas(page_bytes) std::array<std::byte, page_bytes> content;
  fill(content.data(), page_bytes, value(which));
  const std::lock_guard hold(lock_);
  Page& page = pages_[which];
  if (page.state == State::here)
    return;
  here_ += page.state == State::asked ? 1 : 0;
  // Before anybody can see its bytes.
  page.state = State::here;
  uffdio_copy copy{};
  copy.dst = reinterpret_cast<uintptr_t>(first_ + which * stride * page_bytes);
  copy.src = reinterpret_cast<uintptr_t>(content.data());
  copy.len = page_bytes;
  int rc = 0;
  do {
    copy.copy = 0;
    rc = ioctl(faults_, UFFDIO_COPY, &copy);
  } while (rc != 0 && errno == EAGAIN);
  if (rc != 0) { // unmapped meanwhile: who waits shall see that
    uffdio_range range{copy.dst, page_bytes};
    ioctl(faults_, UFFDIO_WAKE, &range);
  }
}

void SlowPages::serve() {
  for (;;) {
    std::vector<size_t> due;
    {
      const std::lock_guard hold(lock_);
      if (stop_)
        break;
      for (size_t i = 0; i < pages_.size() && !held_; ++i)
        if (pages_[i].state == State::asked)
          due.push_back(i);
    }
    for (const size_t i : due)
      come_now(i);
    std::array<pollfd, 2> fds{pollfd{faults_, POLLIN, 0}, pollfd{wake_, POLLIN, 0}};
    poll(fds.data(), fds.size(), -1);
    eventfd_t woken = 0;
    eventfd_read(wake_, &woken);
    uffd_msg message{};
    while (read(faults_, &message, sizeof message) == static_cast<ssize_t>(sizeof message))
      if (message.event == UFFD_EVENT_PAGEFAULT)
        on_fault(message.arg.pagefault.address);
  }
  come_now();
}

} // namespace slow
