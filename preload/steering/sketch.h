// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which remote pages are named often: counts by a hash of the page, which are halved again and
// again so that old ones fade. Pages that share a count are taken for each other. (One row of a
// count-min sketch: Cormode and Muthukrishnan, J. Algorithms 55, 2005.)
#pragma once

#include <array>
#include <cstdint>

namespace adverb::steering {

class Sketch {
public:
  static constexpr unsigned page_bits = 12;

  // The page of that address was named once more. Whether it is hot: it has some four times the
  // share of a page among as many as there are counts.
  bool touch(uint64_t address) noexcept {
    uint8_t& count = counts_[place(address)];
    count = static_cast<uint8_t>(count + (count != UINT8_MAX ? 1 : 0));
    if (--left_ == 0) [[unlikely]]
      fade();
    return count >= hot;
  }
  bool is_hot(uint64_t address) const noexcept { return counts_[place(address)] >= hot; }

private:
  static constexpr unsigned counts_bits = 10;
  static constexpr uint32_t faded_after = 2048; // touches: two of each count, if all are alike
  static constexpr uint8_t hot = 8;

  static size_t place(uint64_t address) noexcept {
    return (address >> page_bits) * 0x9E3779B97F4A7C15U >> (64 - counts_bits);
  }
  void fade() noexcept {
    for (uint8_t& count : counts_)
      count /= 2;
    left_ = faded_after;
  }

  std::array<uint8_t, size_t{1} << counts_bits> counts_{};
  uint32_t left_ = faded_after;
};

} // namespace adverb::steering
