// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Ranges of bytes, which may overlap, and be there several times. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

namespace adverb::registration {

class IntervalSet {
public:
  bool empty() const noexcept { return ranges_.empty(); }
  size_t size() const noexcept { return ranges_.size(); }

  void add(uintptr_t start, uint64_t bytes) {
    ranges_.emplace(start, bytes);
    longest_ = std::max(longest_, bytes);
  }
  // One such. False: there is none.
  bool remove(uintptr_t start, uint64_t bytes) noexcept {
    const auto at = ranges_.find({start, bytes});
    if (at == ranges_.end())
      return false;
    ranges_.erase(at);
    return true;
  }

  // Whether one has a byte of these. A range that does begins before their end, and not before
  // their start by more than the longest there has been.
  bool overlaps(uintptr_t start, uint64_t bytes) const noexcept {
    const auto end = ranges_.lower_bound({start + bytes, 0});
    for (auto at = ranges_.lower_bound({start - std::min<uint64_t>(start, longest_), 0}); at != end;
         ++at)
      if (at->first + at->second > start)
        return true;
    return false;
  }

private:
  std::multiset<std::pair<uintptr_t, uint64_t>> ranges_; // start, bytes
  uint64_t longest_ = 0;                                 // bytes of one there has been
};

} // namespace adverb::registration
