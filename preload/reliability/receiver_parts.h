// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the files of the receiver share.
#pragma once

#include "reliability/feedback.h"
#include "reliability/layout.h"
#include "reliability/rate.h"
#include "reliability/scheme.h"
#include "world/sync.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace adverb::reliability {

struct ReceiverMessage {
  ReceiverMessage(uint64_t number_, uint64_t capacity_, Time deadline_, const Cut& cut)
      : number(number_), capacity(capacity_), deadline(deadline_),
        chunks(
            new Line[(words_of(Layout{cut, capacity_}.chunks()) + Line::words - 1) / Line::words]) {
  }
  // Words that readers share with nothing else.
  struct alignas(64) Line {
    static constexpr uint64_t words = 8;
    Atomic<uint64_t> word[words] = {};
  };
  Atomic<uint64_t>& chunk_word(uint32_t chunk) const noexcept {
    return chunks[chunk / word_bits / Line::words].word[chunk / word_bits % Line::words];
  }
  bool says(const MessageHead& other) const noexcept {
    return head.bytes == other.bytes && head.scheme == other.scheme;
  }
  // All packets of a word.
  uint64_t whole(uint32_t word) const noexcept {
    return word + 1 != packets.size() ? ~uint64_t{0} : bits(0, total - word * word_bits);
  }

  uint64_t number;
  uint64_t capacity;
  Time deadline;
  std::unique_ptr<Line[]> chunks; // the bitmap that the program watches
  bool begun = false;             // what follows is valid since
  MessageHead head;
  Layout layout;
  uint32_t columns = 0;          // of a whole chunk
  uint32_t total = 0;            // packets
  std::vector<uint64_t> packets; // final, or about to be placed
  std::vector<uint32_t> lacking; // by chunk: packets that are not placed
  uint32_t chunks_left = 0;
  uint64_t placed_bytes = 0;
  uint32_t base = 0;    // word: every packet of the earlier ones is final
  uint32_t seen = 0;    // word behind that of the last packet that has arrived
  uint32_t said_to = 0; // word up to which the last section of the current round went
  Blocks blocks;
  // By block and column: data packets that are missing, parity packets that are there.
  std::vector<uint8_t> missing;
  std::vector<uint8_t> parity;
  std::vector<uint64_t> parity_packets;
  End end = End::open;
};

} // namespace adverb::reliability
