// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

#include <chrono>

namespace adverb {

/// Steady time. Any thread.
class Clock {
public:
  virtual ~Clock() = default;
  /// Since some moment in the past, the same for the whole life of the clock.
  virtual std::chrono::nanoseconds now() noexcept = 0;
};

class SteadyClock final : public Clock {
public:
  std::chrono::nanoseconds now() noexcept override {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
};

} // namespace adverb
