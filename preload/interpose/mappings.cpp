// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Hooks of the C library: what is watched (memory/userfault.h) is a mapping of its own to the
// kernel, and mremap() moves one mapping at a time. Where a program's call would fail for that,
// what is watched there is given up, and it is made again. (The C library's own calls, of
// realloc(), go on by copying.)
#include "interpose/process_world.h"
#include "memory/monitor.h"
#include "world/world.h"

#if defined(__x86_64__)

#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" [[gnu::visibility("default")]] void* mremap(void* old, size_t old_bytes, size_t bytes,
                                                       int flags, ...) noexcept {
  va_list rest;
  va_start(rest, flags);
  void* const to = va_arg(rest, void*); // whether it is there or not, as the C library does
  va_end(rest);
  const auto call = [&] {
    return reinterpret_cast<void*>(syscall(SYS_mremap, old, old_bytes, bytes, flags, to));
  };
  void* const got = call();
  if (got != MAP_FAILED || errno != EFAULT)
    return got;
  auto* const monitor = adverb::interpose::process_world().parts.monitor.made();
  const auto from = reinterpret_cast<uintptr_t>(old);
  if (monitor == nullptr || !monitor->forget({from, from + old_bytes})) {
    errno = EFAULT;
    return MAP_FAILED;
  }
  return call();
}

#endif
