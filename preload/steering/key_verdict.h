// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What is known of a key of a peer's, as its owner has told it.
#pragma once

#include "world/sync.h"

#include <cstdint>

namespace adverb::steering {

// Copied as a whole, word by word, out of a table that is written meanwhile (transfer/verdicts.h):
// what a further kind has to say of a key is a further plain member here.
struct KeyVerdict {
  enum class Kind : uint8_t {
    unknown,     // nobody has been asked yet
    real,        // the device's own, or nobody's: the device shall judge it
    virtual_key, // of an unpinned region: the owner's responder serves it
  };
  // Differs from every other verdict of the same peer's process, on this key or another: who has
  // acted on a verdict finds it still good by the epoch alone. 0: unknown.
  uint32_t epoch = 0;
  Kind kind = Kind::unknown;
  // Of a real key: the one under which the owner's CPU serves requests on the region, too.
  static constexpr uint32_t not_asked = 0; // whether it does
  static constexpr uint32_t none = UINT32_MAX;
  uint32_t served = not_asked;

  bool known() const noexcept { return kind != Kind::unknown; }
  bool is_served() const noexcept { return served != not_asked && served != none; }
};

// A remote key for which it was found out whether it is the device's own, and until when that
// holds: while `changes` says what it said then.
inline constinit const Atomic<uint32_t> never_changes{0};
struct KeyAnswer {
  uint32_t key = 0;
  uint32_t at = 1; // of no key
  const Atomic<uint32_t>* changes = &never_changes;
  bool steered = false; // requests to it may have to go by the peer's CPU: Steer says which

  bool is(uint32_t remote_key) const noexcept {
    return key == remote_key && changes->load(std::memory_order_acquire) == at;
  }
};

} // namespace adverb::steering
