// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Whether the thread that serves gets the processor when it wants it, as the kernel counts: how
// long it ran, and how long it was runnable and waited (/proc/thread-self/schedstat,
// Documentation/scheduler/sched-stats.rst). A kernel that does not count says 0, and the thread is
// never found to be short.
//
// Free while nobody asks; then two system calls in a window.
#pragma once

#include "world/sync.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <sys/types.h>

namespace adverb::service {

class CpuShare {
public:
  using nanoseconds = std::chrono::nanoseconds;
  struct Times {
    nanoseconds ran;
    nanoseconds waited;
  };

  /// Any thread. What the last window has shown; asks for another.
  bool is_short() noexcept {
    asked_.store(true, std::memory_order_relaxed);
    return short_.load(std::memory_order_relaxed);
  }
  /// By the thread that serves, often.
  void look(nanoseconds now) noexcept {
    if (now - looked_ >= window && asked_.load(std::memory_order_relaxed))
      measure(now);
  }
  /// What a look finds, apart from where the times come from: for tests.
  void judge(nanoseconds now, const Times& times) noexcept;

  static constexpr std::chrono::milliseconds window{10};

private:
  void measure(nanoseconds now) noexcept;
  std::optional<Times> read() noexcept;

  Atomic<bool> asked_{false};
  Atomic<bool> short_{false};
  // The thread's that serves; another one opens its own file.
  nanoseconds looked_{0};
  std::optional<Times> before_;
  pid_t thread_ = 0;
  int file_ = -1;
};

} // namespace adverb::service
