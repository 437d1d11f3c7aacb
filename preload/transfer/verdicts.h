// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Verdicts on a peer's keys: read on every post without a lock, written when the peer tells.
//
// A table of fixed size, cut into buckets of eight slots. A key has one bucket by its hash, so a
// look reads eight slots at most, and a full bucket forgets a verdict, which the peer is then asked
// again. Each slot is a seqlock: its version is odd while it is written. Loads are acquires rather
// than followed by a fence, which costs the same on what adverb runs on and is understood by TSan.
#pragma once

#include "steering/key_verdict.h"
#include "world/sync.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace adverb::transfer {

class Verdicts {
public:
  using Kind = steering::KeyVerdict::Kind;
  static constexpr size_t slots_max = 16384;

  Verdicts();

  steering::KeyVerdict find(uint32_t key) const noexcept;

  // Grows whenever a verdict may have changed: one found since it was read last is still good.
  const Atomic<uint32_t>& changes() const noexcept { return changes_; }

  // Thread-safe, leaf lock. learn() gives the key's verdict a new epoch unless it is the one known.
  // `served`: KeyVerdict's; `not_asked` leaves what was known of it.
  void learn(uint32_t key, Kind kind, uint32_t served = steering::KeyVerdict::not_asked) noexcept;
  void forget(uint32_t key) noexcept;
  // These keys under which the owner's CPU served real ones have ended: the real ones, of which it
  // is no longer known whether they are served.
  std::vector<uint32_t> forget_served(std::span<const uint32_t> ended);
  // That keys are the device's: one of them met an error there, and what it named may have been
  // nothing, so that it is another's now.
  void forget_real() noexcept;

  // Of what kind a key is likely to be that nothing is known of: as the last one learned, and
  // virtual before the first.
  bool likely_virtual() const noexcept { return likely_virtual_.load(std::memory_order_relaxed); }

private:
  static constexpr size_t bucket_slots = 8;
  static constexpr int tries_max = 1000;
  struct Words {
    std::array<uint64_t, (sizeof(steering::KeyVerdict) + 7) / 8> all;
  };
  static_assert(std::is_trivially_copyable_v<steering::KeyVerdict>);

  struct Slot {
    Atomic<uint32_t> version;
    Atomic<uint32_t> key;
    std::array<Atomic<uint64_t>, std::tuple_size_v<decltype(Words::all)>> words;
  };
  struct Free {
    void operator()(Slot* slots) const noexcept;
  };

  static size_t bucket_of(uint32_t key) noexcept {
    constexpr int bits = std::countr_zero(slots_max / bucket_slots);
    return (key * 0x9E3779B1U >> (32 - bits)) * bucket_slots;
  }
  static steering::KeyVerdict read(const Slot& slot, uint32_t key) noexcept;
  void write(Slot& slot, uint32_t key, const steering::KeyVerdict& verdict) noexcept; // lock held
  Slot* of(uint32_t key) const noexcept;                                              // lock held

  std::unique_ptr<Slot[], Free> slots_;
  Mutex lock_; // writers
  Atomic<uint32_t> changes_{0};
  Atomic<bool> likely_virtual_{true};
  bool any_served_ = false; // was learned; under the lock
  uint32_t epoch_ = 0;
  size_t victim_ = 0;
};

// What the slot holds on the key; unknown when it holds another, or nothing, or when the writer
// does not get on: it may wait for the processor that this thread holds.
inline steering::KeyVerdict Verdicts::read(const Slot& slot, uint32_t key) noexcept {
  for (int tries = 0; tries < tries_max; ++tries) {
    const uint32_t before = slot.version.load(std::memory_order_acquire);
    const bool hit = slot.key.load(std::memory_order_acquire) == key;
    Words words;
    for (size_t i = 0; i < words.all.size(); ++i)
      words.all[i] = slot.words[i].load(std::memory_order_acquire);
    if ((before & 1) != 0 || slot.version.load(std::memory_order_relaxed) != before)
      continue;
    steering::KeyVerdict verdict;
    if (hit)
      memcpy(static_cast<void*>(&verdict), words.all.data(), sizeof verdict);
    return verdict;
  }
  return {};
}

inline steering::KeyVerdict Verdicts::find(uint32_t key) const noexcept {
  const size_t bucket = bucket_of(key);
  for (size_t i = bucket; i < bucket + bucket_slots; ++i)
    if (slots_[i].key.load(std::memory_order_relaxed) == key)
      if (const auto verdict = read(slots_[i], key); verdict.known())
        return verdict;
  return {};
}

} // namespace adverb::transfer
