// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Whether a key may be among some, answered by one load and no lock: a counting Bloom filter of one
// hash (Bloom 1970; counting: Fan, Cao, Almeida, Broder 2000). With n keys in it, one in
// 4096 / n that are not is taken for one.
#pragma once

#include "world/sync.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace adverb::registration {

// add() and remove() are the caller's to keep apart. Who asks for a key that was added before, in
// the order that threads have between them, is told so.
class KeyFilter {
public:
  bool may_hold(uint32_t key) const noexcept {
    return counts_[slot(key)].load(std::memory_order_relaxed) != 0;
  }
  bool holds_any() const noexcept { return all_.load(std::memory_order_relaxed) != 0; }
  void add(uint32_t key) noexcept {
    counts_[slot(key)].fetch_add(1, std::memory_order_relaxed);
    all_.fetch_add(1, std::memory_order_relaxed);
  }
  void remove(uint32_t key) noexcept {
    counts_[slot(key)].fetch_sub(1, std::memory_order_relaxed);
    all_.fetch_sub(1, std::memory_order_relaxed);
  }

private:
  static constexpr unsigned bits = 12;
  // Keys differ in their upper bits as numbers of one table and in their lower ones as generations
  // of one number; the product's upper bits depend on all of them.
  static size_t slot(uint32_t key) noexcept { return key * 0x9E3779B1U >> (32 - bits); }

  std::array<Atomic<uint32_t>, size_t{1} << bits> counts_{};
  Atomic<uint32_t> all_{0};
};

} // namespace adverb::registration
