// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// When adverb polls a CQ itself, as the program does not: at most one timer, which comes ever less
// often while the program's own polls do not come.
#pragma once

#include "world/sync.h"

#include <algorithm>
#include <chrono>

namespace adverb::model {

// Any thread.
class DrainPace {
public:
  // From 200 us to 3.2 ms: the program's own polls usually come first.
  std::chrono::microseconds pause() const noexcept {
    return std::chrono::microseconds(200 << std::min(round_.load(), 4U));
  }
  // A drain is wanted. True: the caller starts the timer, none is running.
  bool want() noexcept {
    wanted_.store(true);
    return !running_.exchange(true);
  }
  // The timer has run out. False: no drain is wanted any more.
  bool due() noexcept {
    running_.store(false);
    return wanted_.exchange(false);
  }
  // Another one follows, later.
  void slow_down() noexcept { ++round_; }
  // Nothing is waited for: the next one comes soon again.
  void reset() noexcept { round_ = 0; }

private:
  Atomic<bool> wanted_{false};
  Atomic<bool> running_{false};
  Atomic<unsigned> round_{0};
};

} // namespace adverb::model
