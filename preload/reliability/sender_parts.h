// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the files of the sender share.
#pragma once

#include "reliability/layout.h"
#include "reliability/rate.h"
#include "reliability/scheme.h"

#include <cstdint>
#include <deque>
#include <vector>

namespace adverb::reliability {

struct SenderBlock {
  uint32_t unsent = 0;      // data packets that were never sent
  uint32_t parity_sent = 0; // parity packets, shard by shard
  uint32_t unjudged = 0;    // packets under way, as long as the block has not fallen back
  bool fell_back = false;   // parity was not enough: losses are sent again
};

struct SenderMessage {
  SenderMessage(uint64_t number, const Layout& layout, const Scheme& scheme, bool ready);
  void make_ready(uint32_t first, uint32_t end);
  uint64_t in_block(uint32_t number, uint32_t word) const noexcept;
  void again(uint64_t packets, uint32_t word);
  void again_whole(uint32_t packet);
  bool has_work() const noexcept { return repairs != 0 || fresh_left != 0 || !parity_due.empty(); }

  uint64_t number;
  Layout layout;
  Scheme scheme;
  uint32_t total;               // packets
  std::vector<uint64_t> final_; // at the receiver, as it has reported
  std::vector<uint64_t> fresh;  // ready and never sent
  std::vector<uint64_t> repair; // to be sent again
  bool streaming = false;       // packets become ready one by one
  std::vector<uint64_t> ready;  // of it: those that are
  uint64_t fresh_left = 0;
  uint64_t repairs = 0;
  uint32_t fresh_at = 0;    // no earlier word of `fresh` has a bit
  uint32_t repair_at = 0;   // nor of `repair`
  uint32_t final_words = 0; // from the first on, of which every packet is final
  Blocks blocks;
  std::vector<SenderBlock> of_block;
  std::deque<uint32_t> parity_due; // blocks all of whose data was sent
  std::vector<Time> again_at;      // by chunk: when it was last taken to be sent again
  bool cancelling = false;
  bool cancel_sent = false;
  Time cancelled_at{0};
};

struct SenderNote {
  uint64_t sequence = 0;
  uint32_t count = 0;   // packets of the run
  uint64_t packets = 0; // of them not judged
  Time sent{0};
  uint64_t message = 0;
  uint32_t word = 0;
  Kind kind = Kind::data;
};

} // namespace adverb::reliability
