// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// To which memory of the process the device brings messages by itself, and of which receive queues:
// posted receives that have windows. Who is about to have one wait in staging asks whether those of
// other queues are there: their messages come whenever they are sent, also between its own and the
// poll that copies it.
//
// Of its own queue they do not count. Messages of one come in the order of its receives, so theirs
// are there first.
//
// Part of StagedReceives. Thread-safe, no lock, nothing is allocated for a receive. A part of
// memory shares its count with others far from it, and a queue that was not alone there is taken
// for several until all have gone, so the answer may be yes where there is none.
#pragma once

#include "world/sync.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace adverb::registration {

// Where the bytes of one element are for, by addresses of the process; none: `bytes` is 0.
struct ReceivePlace {
  uintptr_t start = 0;
  uint64_t bytes = 0;

  bool meets(uintptr_t from, uint64_t length) const noexcept {
    return start < from + length && from < start + bytes;
  }
};

class PlacedReceives {
public:
  // Names one more receive queue; of 2^32 of a process none is named like another.
  uint32_t number() noexcept { return numbers_.fetch_add(1) + 1; }

  // Before the provider has the receive, and before it is asked what stands in staging there.
  void add(const ReceivePlace& place, uint32_t queue) noexcept {
    const Parts parts = of(place.start, place.bytes);
    for (uint32_t i = 0; i < parts.count; ++i) {
      Atomic<uint64_t>& entry = entries_[(parts.first + i) % entries];
      uint64_t was = entry.load();
      while (!entry.compare_exchange_strong(was, with_one_more(was, queue))) {
      }
    }
  }
  // Its message has come, or never will.
  void remove(const ReceivePlace& place) noexcept {
    const Parts parts = of(place.start, place.bytes);
    for (uint32_t i = 0; i < parts.count; ++i)
      entries_[(parts.first + i) % entries].fetch_sub(1);
  }
  bool others(uintptr_t start, uint64_t bytes, uint32_t queue) const noexcept {
    const Parts parts = of(start, bytes);
    for (uint32_t i = 0; i < parts.count; ++i)
      if (const uint64_t entry = entries_[(parts.first + i) % entries].load();
          count_of(entry) != 0 && queue_of(entry) != queue)
        return true;
    return false;
  }

private:
  static constexpr unsigned part_shift =
      16;                                  // a staging block's, the most that stands there unasked
  static constexpr size_t entries = 16384; // the parts of 1 GiB
  static constexpr uint32_t several = UINT32_MAX;

  struct Parts {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  static Parts of(uintptr_t start, uint64_t bytes) noexcept {
    if (bytes == 0)
      return {};
    const uint64_t first = start >> part_shift;
    const uint64_t parts = ((start + bytes - 1) >> part_shift) - first + 1;
    return {static_cast<uint32_t>(first % entries),
            static_cast<uint32_t>(parts < entries ? parts : entries)};
  }
  // An entry: the queue, how many receives.
  static uint32_t count_of(uint64_t entry) noexcept { return static_cast<uint32_t>(entry); }
  static uint32_t queue_of(uint64_t entry) noexcept { return static_cast<uint32_t>(entry >> 32); }
  static uint64_t with_one_more(uint64_t entry, uint32_t queue) noexcept {
    const bool alone = count_of(entry) == 0 || queue_of(entry) == queue;
    return uint64_t{alone ? queue : several} << 32 | (count_of(entry) + 1);
  }

  Atomic<uint32_t> numbers_{0};
  std::array<Atomic<uint64_t>, entries> entries_{};
};

} // namespace adverb::registration
