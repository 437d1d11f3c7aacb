// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Hooks of the C library: what is watched (memory/userfault.h) is a mapping of its own to the
// kernel, and mremap() moves one mapping at a time. Where a program's call would fail for that,
// what is watched there is given up, and it is made again. (The C library's own calls, of
// realloc(), go on by copying.) Linux 6.17 moves several to a place that is given, where their size
// stays, and when it meets one that is watched those before it have moved: no such call may fail.
#include "interpose/process_world.h"
#include "memory/monitor.h"
#include "world/no_cancel.h"
#include "world/world.h"

#if defined(__x86_64__)

#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

// The C library's own, which registration caches (of UCX, Open MPI, libfabric) have patched to hear
// of each call; looked up by the constructor, as dlsym() may allocate.
using Mremap = void* (*)(void*, size_t, size_t, int, ...);
Mremap next_mremap() noexcept {
  static const auto next = reinterpret_cast<Mremap>(dlsym(RTLD_NEXT, "mremap"));
  return next;
}
__attribute__((constructor)) void look_up_mremap() {
  next_mremap();
}

bool forget(void* old, size_t bytes) noexcept {
  const adverb::NoCancel whole;
  auto* const monitor = adverb::interpose::process_world().parts.monitor.made();
  const auto from = reinterpret_cast<uintptr_t>(old);
  return monitor != nullptr && monitor->forget({from, from + bytes});
}

} // namespace

extern "C" [[gnu::visibility("default")]] void* mremap(void* old, size_t old_bytes, size_t bytes,
                                                       int flags, ...) noexcept {
  va_list rest;
  va_start(rest, flags);
  void* const to = va_arg(rest, void*); // whether it is there or not, as the C library does
  va_end(rest);
  const auto call = [&] {
    return next_mremap() != nullptr
               ? next_mremap()(old, old_bytes, bytes, flags, to)
               : reinterpret_cast<void*>(syscall(SYS_mremap, old, old_bytes, bytes, flags, to));
  };
  if ((flags & MREMAP_FIXED) != 0 && old_bytes == bytes)
    forget(old, old_bytes);
  void* const got = call();
  if (got != MAP_FAILED || errno != EFAULT)
    return got;
  if (!forget(old, old_bytes)) {
    errno = EFAULT;
    return MAP_FAILED;
  }
  return call();
}

#endif
