// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/copy.h"
#include "memory/dispositions.h"
#include "memory/guard.h"
#include "world/no_cancel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace adverb::memory {
namespace {

// Copies are made where a sanitizer does not look: its own look, in a build that has one. What is
// outside the program's addresses it says nothing of.
void look(uintptr_t program, size_t bytes) noexcept {
#if defined(__SANITIZE_ADDRESS__)
  constexpr unsigned address_bits = 47;
  if (((program | (program + bytes)) >> address_bits) != 0)
    return;
  if (const void* bad = __asan_region_is_poisoned(reinterpret_cast<void*>(program), bytes))
      [[maybe_unused]]
    const char seen = *static_cast<const volatile char*>(bad); // reports
#else
  (void)program, (void)bytes;
#endif
}

enum class Method { unknown, process_vm, proc_mem, none };
std::atomic<Method> chosen{Method::unknown};

// process_vm_* on ourselves needs no privilege but a seccomp filter may forbid it. /proc/self/mem
// is the fallback: it can write through a read-only private mapping (FOLL_FORCE), so rights of the
// mapping are weaker there; the region's own rights are checked before we come here.
Method probe() {
  char a = 1;
  char b = 0;
  const iovec from{&a, 1};
  const iovec to{&b, 1};
  if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1)
    return Method::process_vm;
  return access("/proc/self/mem", R_OK | W_OK) == 0 ? Method::proc_mem : Method::none;
}

Method pick() {
  Method m = chosen.load(std::memory_order_acquire);
  if (m == Method::unknown) {
    const int saved = errno;
    m = probe();
    chosen.store(m, std::memory_order_release);
    errno = saved;
  }
  return m;
}

// Opened per call: a descriptor kept open would survive into a child and name the parent's memory.
bool through_proc_mem(void* own, uintptr_t program, size_t bytes, bool writing) {
  const NoCancel whole;
  const int fd = open("/proc/self/mem", (writing ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
  if (fd < 0)
    return false;
  size_t done = 0;
  while (done < bytes) {
    auto* at = static_cast<char*>(own) + done;
    const auto off = static_cast<off_t>(program + done);
    const ssize_t n =
        writing ? pwrite(fd, at, bytes - done, off) : pread(fd, at, bytes - done, off);
    if (n <= 0)
      break;
    done += static_cast<size_t>(n);
  }
  close(fd);
  return done == bytes;
}

// What the kernel refuses no NIC could have reached, and what it grants one can: protection keys,
// say, hold for native copies only. So it has the last word.
bool through_kernel(void* own, uintptr_t program, size_t bytes, bool writing) noexcept {
  const int saved = errno;
  bool ok = false;
  switch (pick()) {
  case Method::process_vm: {
    size_t done = 0;
    while (done < bytes) {
      const iovec mine{static_cast<char*>(own) + done, bytes - done};
      const iovec theirs{reinterpret_cast<void*>(program + done), bytes - done};
      const ssize_t n = writing ? process_vm_writev(getpid(), &mine, 1, &theirs, 1, 0)
                                : process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0);
      if (n <= 0) // a short copy is followed by a call that says why
        break;
      done += static_cast<size_t>(n);
    }
    ok = done == bytes;
    break;
  }
  case Method::proc_mem:
    ok = through_proc_mem(own, program, bytes, writing);
    break;
  default:
    break;
  }
  errno = saved;
  return ok;
}

bool transfer(void* own, uintptr_t program, size_t bytes, bool writing, bool native) noexcept {
  auto* theirs = reinterpret_cast<void*>(program);
  const size_t left = !native   ? bytes
                      : writing ? copy_native(theirs, own, bytes)
                                : copy_native(own, theirs, bytes);
  if (left == 0) [[likely]]
    return true;
  const size_t done = bytes - left;
  return through_kernel(static_cast<char*>(own) + done, program + done, left, writing);
}

} // namespace

bool read(void* to, const void* program, size_t bytes) noexcept {
  const auto at = reinterpret_cast<uintptr_t>(program);
  look(at, bytes);
  return transfer(to, at, bytes, false, native_now());
}

bool write(void* program, const void* from, size_t bytes) noexcept {
  if (bytes == 0)
    return true;
  const auto at = reinterpret_cast<uintptr_t>(program);
  look(at, bytes);
  return transfer(const_cast<void*>(from), at, bytes, true, native_now());
}

bool write_in_order(void* program, const void* from, size_t bytes) noexcept {
  if (bytes == 0)
    return true;
  const auto at = reinterpret_cast<uintptr_t>(program);
  look(at, bytes);
  // Long copies are string instructions, whose own stores may become visible in any order, but
  // before a later one (Intel SDM vol. 3, 9.2.4): hence body first and then the end, the last
  // aligned 8 bytes where the payload covers them, else what is left of them.
  const uintptr_t end = at + bytes;
  const uintptr_t last = (end - 1) & ~uintptr_t{7};
  const uintptr_t cut = last < at ? at : last;
  const size_t body = cut - at;
  const size_t tail = end - cut;
  auto* source = static_cast<char*>(const_cast<void*>(from));
  const bool native = native_now();
  if (body != 0 && !transfer(source, at, body, true, native))
    return false;
  const size_t left =
      native ? store_native(reinterpret_cast<void*>(cut), source + body, tail) : tail;
  if (left == 0) [[likely]]
    return true;
  const size_t done = bytes - left;
  return through_kernel(source + done, at + done, left, true);
}

namespace {

// A byte of each of these places, so many at a time; false: not all of them come.
bool look_by_kernel(uintptr_t from, uintptr_t to, uintptr_t page) noexcept {
  if (pick() != Method::process_vm) {
    for (uintptr_t at = from; at < to; at = (at | (page - 1)) + 1) {
      char unused = 0;
      if (!through_kernel(&unused, at, 1, false))
        return false;
    }
    return true;
  }
  const int saved = errno;
  std::array<iovec, 64> pages; // NOLINT: set one by one
  std::array<char, pages.size()> unused;
  const iovec mine{unused.data(), unused.size()};
  bool all = true;
  for (uintptr_t at = from; at < to && all;) {
    size_t n = 0;
    for (; n < pages.size() && at < to; ++n, at = (at | (page - 1)) + 1)
      pages[n] = {reinterpret_cast<void*>(at), 1};
    all = process_vm_readv(getpid(), &mine, 1, pages.data(), n, 0) == static_cast<ssize_t>(n);
  }
  errno = saved;
  return all;
}

} // namespace

void bring_in(const void* program, size_t bytes) noexcept {
  if (bytes == 0)
    return;
  constexpr uintptr_t page = 4096; // none is smaller
  const auto from = reinterpret_cast<uintptr_t>(program);
  if (!native_now()) {
    look_by_kernel(from, from + bytes, page);
    return;
  }
  for (uintptr_t at = from; at < from + bytes; at = (at | (page - 1)) + 1) {
    char unused = 0;
    if (copy_native(&unused, reinterpret_cast<const void*>(at), 1) != 0)
      return; // it does not come, and who copies says so
  }
}

bool is_here(const void* program, size_t bytes) noexcept {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t from = reinterpret_cast<uintptr_t>(program) & ~(page - 1);
  const uintptr_t to = reinterpret_cast<uintptr_t>(program) + bytes;
  std::array<unsigned char, 64> pages; // NOLINT: the kernel sets them
  if (bytes == 0 || (to - from + page - 1) / page > pages.size())
    return false;
  const int saved = errno;
  const bool asked = mincore(reinterpret_cast<void*>(from), to - from, pages.data()) == 0;
  errno = saved;
  return asked && std::all_of(pages.begin(), pages.begin() + (to - from + page - 1) / page,
                              [](unsigned char one) { return (one & 1) != 0; });
}

const char* method() noexcept {
  const Native state = native_state.load(std::memory_order_relaxed);
  const bool native = state == Native::unasked || state == Native::on;
  switch (pick()) {
  case Method::process_vm:
    return native ? "native, after a fault process_vm_readv/writev" : "process_vm_readv/writev";
  case Method::proc_mem:
    return native ? "native, after a fault /proc/self/mem" : "/proc/self/mem";
  default:
    return native ? "native" : "none";
  }
}

} // namespace adverb::memory
