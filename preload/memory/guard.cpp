// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/guard.h"
#include "memory/dispositions.h"
#include "memory/native_copy.h"

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <sys/syscall.h>
#include <unistd.h>

namespace adverb::memory {

#if defined(ADVERB_NATIVE_COPY)
namespace {

constexpr uint64_t look_again = 10'000'000; // nanoseconds

// The coarse clock: what the kernel last wrote down, a dozen nanoseconds where reading the
// processor's counter takes twice that, and it needs no calibration and cannot be forbidden. It
// ticks every 1 to 10 ms.
uint64_t now() noexcept {
  timespec t; // NOLINT: the clock is there
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

bool blocks_faults() noexcept {
  constexpr uint64_t faults = (uint64_t{1} << (SIGSEGV - 1)) | (uint64_t{1} << (SIGBUS - 1));
  uint64_t mask = faults;
  syscall(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, &mask, sizeof mask);
  return (mask & faults) != 0;
}

[[gnu::noinline]] bool look(MaskLook& mine, uint64_t at) noexcept {
  const int saved = errno;
  // Noted first, so that what a signal handler does meanwhile makes the next look a real one.
  mine.clear = false;
  mine.at = at;
  mine.clear = handlers_in_place() && !blocks_faults();
  errno = saved;
  return mine.clear;
}

} // namespace

bool native_now() noexcept {
  const Native state = native_state.load(std::memory_order_relaxed);
  if (state != Native::on) [[unlikely]] {
    if (state != Native::unasked)
      return false;
    take_over();
  }
  MaskLook& mine = mask_look();
  const uint64_t at = now();
  return at - mine.at < look_again ? mine.clear : look(mine, at);
}

size_t copy_native(void* to, const void* from, size_t bytes) noexcept {
  return adverb_copy(to, from, bytes);
}

size_t store_native(void* to, const void* from, size_t bytes) noexcept {
  auto at = reinterpret_cast<uintptr_t>(to);
  const auto* source = static_cast<const unsigned char*>(from);
  while (bytes != 0) {
    uint64_t value = 0;
    size_t step = 8;
    while (step > bytes || (at & (step - 1)) != 0)
      step /= 2;
    memcpy(&value, source, step);
    auto* p = reinterpret_cast<void*>(at);
    const size_t left = step == 8   ? adverb_store8(p, value)
                        : step == 4 ? adverb_store4(p, value)
                        : step == 2 ? adverb_store2(p, value)
                                    : adverb_store1(p, value);
    if (left != 0)
      break;
    at += step;
    source += step;
    bytes -= step;
  }
  return bytes;
}

#else

bool native_now() noexcept {
  return false;
}
size_t copy_native(void* /*to*/, const void* /*from*/, size_t bytes) noexcept {
  return bytes;
}
size_t store_native(void* /*to*/, const void* /*from*/, size_t bytes) noexcept {
  return bytes;
}

#endif

} // namespace adverb::memory
