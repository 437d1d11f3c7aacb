// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which memory of the process messages are still to be copied to, of all contexts: posted receives
// that stand in staging. Who is about to touch memory in a peer's name asks whether some are there.
//
// World::staged_receives(). Thread-safe, no lock, nothing is allocated for a receive. A page shares
// its count with others far from it, so the answer may be yes where there is none.
#pragma once

#include "registration/placed_receives.h"
#include "world/sync.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace adverb::registration {

class StagedReceives {
public:
  // Before the provider has the receive, and before it is asked which ones are placed there.
  void add(const ReceivePlace& place) noexcept {
    const Pages pages = of(place.start, place.bytes);
    for (uint32_t i = 0; i < pages.count; ++i)
      at(pages.first + i).fetch_add(1);
  }
  // Its message is in its place, or will never be.
  void remove(const ReceivePlace& place) noexcept {
    const Pages pages = of(place.start, place.bytes);
    for (uint32_t i = 0; i < pages.count; ++i)
      at(pages.first + i).fetch_sub(1, std::memory_order_release);
  }
  bool any() const noexcept { return meet(0, uint64_t{counts} << page_shift); }
  bool meet(uintptr_t start, uint64_t bytes) const noexcept {
    const Pages pages = of(start, bytes);
    for (uint32_t i = 0; i < pages.count; ++i)
      if (counts_[(pages.first + i) % counts].load() != 0)
        return true;
    return false;
  }

  // Those that do not stand in staging. Who adds to either looks at the other then: of two at a
  // time one sees the other.
  PlacedReceives& placed() noexcept { return placed_; }
  const PlacedReceives& placed() const noexcept { return placed_; }

private:
  static constexpr unsigned page_shift = 12;
  static constexpr size_t counts = 16384; // the pages of 64 MiB; staging is less

  struct Pages {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  static Pages of(uintptr_t start, uint64_t bytes) noexcept {
    if (bytes == 0)
      return {};
    const uint64_t first = start >> page_shift;
    const uint64_t pages = ((start + bytes - 1) >> page_shift) - first + 1;
    return {static_cast<uint32_t>(first % counts),
            static_cast<uint32_t>(pages < counts ? pages : counts)};
  }
  Atomic<uint32_t>& at(uint32_t page) noexcept { return counts_[page % counts]; }

  std::array<Atomic<uint32_t>, counts> counts_{};
  PlacedReceives placed_;
};

} // namespace adverb::registration
