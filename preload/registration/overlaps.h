// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which memory the device reaches by itself, for peers or for receives of pinned regions. What
// arrives through an unpinned region for such bytes is not staged: it would come to its place only
// when the program polls, after whatever the device does there later. Of messages, of no region
// that has such bytes: one of them alone would have to be staged behind another, and be in place at
// once.
//
// The lock of Regions guards it.
#pragma once

#include "registration/interval_set.h"
#include "registration/region.h"

#include <cstdint>

namespace adverb::registration {

class Overlaps {
public:
  // What of a region counts, as it was when it was added.
  struct Reached {
    uintptr_t start;
    uint64_t length; // 0: it is not reached so
  };
  static Reached of(const Region& r) noexcept {
    constexpr unsigned reached = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    return {r.start, r.key == nullptr && (r.access & reached) != 0 ? r.length : 0};
  }

  // Held for writing.
  void add(const Reached& r) {
    if (r.length == 0)
      return;
    reached_.add(r.start, r.length);
    ++layout_;
  }
  void remove(const Reached& r) {
    if (reached_.remove(r.start, r.length))
      ++layout_;
  }

  bool any() const noexcept { return !reached_.empty(); }
  // Held for reading; any number of threads. Whether bytes [address, +length) of `region`, as work
  // requests name them, are such memory.
  bool meet(Region& region, uint64_t address, uint64_t length) const {
    return meet(region) &&
           reached_.overlaps(reinterpret_cast<uintptr_t>(region.at(address)), length);
  }
  // Whether any of it are, which is kept with the region.
  bool meet(Region& region) const {
    const uint64_t known = region.overlaps.load(std::memory_order_relaxed);
    bool some = (known & 1) != 0;
    if (known >> 1 != layout_) {
      some = reached_.overlaps(region.start, region.length);
      region.overlaps.store(layout_ << 1 | (some ? 1U : 0U), std::memory_order_relaxed);
    }
    return some;
  }

private:
  IntervalSet reached_;
  uint64_t layout_ = 1; // another one with every change
};

} // namespace adverb::registration
