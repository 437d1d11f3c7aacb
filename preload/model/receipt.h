// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The receive side's door: what is known of a message when its receive completes. A handler of the
// responder makes one for an immediate whose data travelled another way; of all others the
// completion says enough. The receive's completion consumes it, and the program finds the bytes
// where it expects them and the length that was sent.
#pragma once

#include "transfer/messages.h"
#include "world/sync.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <mutex>

#include <infiniband/verbs.h>

namespace adverb::model {

struct Receipt {
  enum class Source : uint8_t {
    in_place, // the data is where the program expects it
    staged,   // in the staging blocks that stood in for the posted buffer
  };
  // Among its receive-consuming messages, from 1. On UC, where any may be lost, it says by which
  // immediate it is known (transfer/messages.h).
  uint64_t number = 0;
  uint32_t bytes = 0; // that the completion reports
  Source source = Source::in_place;
};

// Those of one queue pair that handlers made, in order of their numbers. Thread-safe; its lock is a
// leaf.
class Receipts {
public:
  void expect(const Receipt& receipt) {
    const std::lock_guard hold(lock_);
    if (waiting_.size() == waiting_max)
      waiting_.pop_front();
    waiting_.push_back(receipt);
  }

  // One more message has arrived, with success. One of before start() bears its own length. What a
  // handler said counts for an immediate only: a message that came through the receive is where the
  // device put it, whatever was foretold. (On UC a message may be lost, and the count be wrong.)
  Receipt consume(const ibv_wc& wc) {
    const bool through_receive = wc.opcode == IBV_WC_RECV;
    const Receipt plain{.bytes = wc.byte_len,
                        .source =
                            through_receive ? Receipt::Source::staged : Receipt::Source::in_place};
    const std::lock_guard hold(lock_);
    if (ended_)
      return plain;
    ++received_;
    if (!waiting_.empty() && (waiting_.front().number & transfer::by_immediate) != 0)
      return through_receive ? plain : consume_by(wc.imm_data, plain);
    while (!waiting_.empty() && waiting_.front().number < received_)
      waiting_.pop_front();
    if (through_receive || waiting_.empty() || waiting_.front().number != received_)
      return plain;
    const Receipt receipt = waiting_.front();
    waiting_.pop_front();
    return receipt;
  }

  // The connection has ended, and with it the count: a shared receive queue may hear of its last
  // messages later still.
  void clear() {
    const std::lock_guard hold(lock_);
    waiting_.clear();
    received_ = 0;
    ended_ = true;
  }
  // Another begins: before its first message can arrive.
  void start() {
    const std::lock_guard hold(lock_);
    ended_ = false;
  }

private:
  static constexpr size_t waiting_max = 1024; // of immediates that were lost, most of them

  // Those before it were lost: what was foretold comes in order.
  Receipt consume_by(uint32_t immediate, const Receipt& plain) {
    const auto at =
        std::ranges::find(waiting_, transfer::by_immediate | immediate, &Receipt::number);
    if (at == waiting_.end())
      return plain;
    const Receipt receipt = *at;
    waiting_.erase(waiting_.begin(), at + 1);
    return receipt;
  }

  Mutex lock_;
  std::deque<Receipt> waiting_;
  uint64_t received_ = 0;
  bool ended_ = false;
};

} // namespace adverb::model
