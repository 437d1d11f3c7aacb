// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the receiver tells the sender, again and again. All of it is cumulative state: each report
// holds by itself, a lost one is made good by the next, and an old one changes nothing.
#pragma once

#include <cstdint>
#include <vector>

namespace adverb::reliability {

// Messages that one sender works on: from the oldest that is not over, so many numbers.
inline constexpr uint64_t open_messages = 512;

// How a message ended, or that it has not.
enum class End : uint8_t {
  open,
  complete,
  partial,   // the receiver has finished it early, or its deadline has passed
  cancelled, // one of the two sides has cancelled it
  truncated, // the receive buffer is shorter than the message
  silent,    // the other side has said nothing for too long
};

// Of one message: which packets are final. Those before `base` are. Those of the words of `packets`
// are where a bit is set. Of those behind the last word none is, if `rest_missing`; otherwise
// nothing is said of them.
struct Section {
  uint64_t message = 0;
  End end = End::open;
  bool rest_missing = false;
  uint32_t base = 0;  // a multiple of 64 unless all packets are final
  uint32_t first = 0; // word of the first of `packets`
  std::vector<uint64_t> packets;
};

struct Feedback {
  uint64_t highest = 0;    // sequence number of the latest packet that arrived, plus one
  uint64_t held_for = 0;   // nanoseconds since that packet arrived
  uint64_t arrived = 0;    // packets that arrived, duplicates included
  uint64_t duplicates = 0; // of them with a message's packet that was there already
  uint64_t starved = 0;    // packets that may have met an empty receive queue: at most so many
  uint64_t credit = 0;     // sequence numbers below this one may be used
  uint64_t granted = 0;    // messages below this number have a receive
  std::vector<Section> sections;
};

} // namespace adverb::reliability
