// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which parts of the program's memory have been copied, for want of a window, and how much.
//
// Whether a buffer will be used again nobody knows when it is used. So it is copied until the
// copies have cost what a window would have: then it gets one. That costs no more than twice what
// it would have cost to know (the ski rental of Karlin, Manasse, Rudolph and Sleator, 1988), and
// what is used once is not registered.
#pragma once

#include "registration/region.h"
#include "world/sync.h"

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>

namespace adverb::registration {

// One per program context. Thread-safe; its lock is a leaf.
class Copied {
public:
  // So many bytes cost as much to copy as a window does.
  void set(uint64_t bytes) noexcept { critical_.store(bytes, std::memory_order_relaxed); }
  // [start, +length), which lies in the region, is to be used, and there is no window. True: it is
  // to have one. False: it is to be copied. Where nothing was measured each is to have one.
  bool window_is_due(const Region& region, uintptr_t start, uint64_t length);

private:
  // Parts of the size of a staging block: a copy lies in two at most, and counts for the first.
  static constexpr unsigned part_bits = 16;
  static constexpr unsigned table_bits = 8;
  struct Part {
    const Life* life = nullptr;
    uint64_t of = 0; // number of the region that lived there
    uint64_t number = 0;
    uint64_t bytes = 0;
  };

  Atomic<uint64_t> critical_{0}; // not measured
  QuickMutex lock_;
  std::unique_ptr<std::array<Part, size_t{1} << table_bits>> parts_; // made when first used
};

} // namespace adverb::registration
