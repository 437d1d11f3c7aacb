// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The markers that may be in one CQ at a time, and who waits to post one.
#pragma once

#include "world/sync.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <optional>
#include <vector>

namespace adverb::model {

// Not thread-safe; the CQ's ready_lock_ guards it. any_waits() is any thread's.
class MarkerSlots {
public:
  // At least one.
  void resize(int slots) noexcept {
    assert(slots > 0);
    slots_ = slots;
  }

  // False: there is no room for a marker more, and the queue pair is in line for it, once. May
  // throw std::bad_alloc, and then has changed nothing.
  bool take(uint32_t qpn) {
    if (taken_ < slots_) {
      ++taken_;
      return true;
    }
    if (std::ranges::find(line_, qpn) == line_.end())
      line_.push_back(qpn);
    any_waits_ = true;
    return false;
  }
  void give_back() noexcept {
    assert(taken_ > 0);
    --taken_;
  }

  bool any_waits() const noexcept { return any_waits_.load(std::memory_order_relaxed); }
  // The queue pair that has waited longest, if there is a slot for it. It waits no more, and has to
  // take() one.
  std::optional<uint32_t> next() noexcept {
    if (taken_ >= slots_ || line_.empty())
      return std::nullopt;
    const uint32_t qpn = line_.front();
    line_.erase(line_.begin());
    any_waits_ = !line_.empty();
    return qpn;
  }

private:
  int slots_ = 1;
  int taken_ = 0;
  std::vector<uint32_t> line_; // queue pair numbers, in the order they came
  Atomic<bool> any_waits_{false};
};

} // namespace adverb::model
