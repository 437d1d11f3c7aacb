// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A clock of a process with threads that a test stops: however slow the machine is, no time passes
// but what the test adds.
#pragma once

#include "world/clock.h"

#include <atomic>
#include <chrono>

namespace adverb::test {

// Steady, and never back. Threads that look for something for some time do so for ever while it
// stands.
class StoppableClock final : public Clock {
public:
  std::chrono::nanoseconds now() noexcept override {
    const auto stands = stands_.load();
    return stands.count() != 0 ? stands : steady() - behind_.load();
  }
  // One thread calls these.
  void stop() { stands_ = now(); }
  void add(std::chrono::nanoseconds time) { stands_ = stands_.load() + time; }
  void go_on() {
    behind_ = steady() - stands_.load();
    stands_ = std::chrono::nanoseconds{0};
  }

private:
  static std::chrono::nanoseconds steady() noexcept {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
  std::atomic<std::chrono::nanoseconds> stands_{}; // 0: it does not
  std::atomic<std::chrono::nanoseconds> behind_{};
};

} // namespace adverb::test
