// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The receive side's door: what is known of a message when its receive completes. A handler of the
// responder makes one for an immediate whose data travelled another way; of all others the
// completion says enough. The receive's completion consumes it, and the program finds the bytes
// where it expects them and the length that was sent.
#pragma once

#include "world/sync.h"

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
  uint64_t number = 0; // among its receive-consuming messages, from 1
  uint32_t bytes = 0;  // that the completion reports
  Source source = Source::in_place;
};

// Those of one queue pair that handlers made, in order of their numbers. Thread-safe; its lock is a
// leaf.
class Receipts {
public:
  void expect(const Receipt& receipt) {
    const std::lock_guard hold(lock_);
    waiting_.push_back(receipt);
  }

  // One more message has arrived, with success. What a handler said counts for an immediate only:
  // a message that came through the receive is where the device put it, whatever was foretold. (On
  // UC a message may be lost, and the count be wrong.)
  Receipt consume(const ibv_wc& wc) {
    const bool through_receive = wc.opcode == IBV_WC_RECV;
    const Receipt plain{.bytes = wc.byte_len,
                        .source =
                            through_receive ? Receipt::Source::staged : Receipt::Source::in_place};
    const std::lock_guard hold(lock_);
    ++received_;
    while (!waiting_.empty() && waiting_.front().number < received_)
      waiting_.pop_front();
    if (through_receive || waiting_.empty() || waiting_.front().number != received_)
      return plain;
    const Receipt receipt = waiting_.front();
    waiting_.pop_front();
    return receipt;
  }

  // The connection has ended, and with it the count.
  void clear() {
    const std::lock_guard hold(lock_);
    waiting_.clear();
    received_ = 0;
  }

private:
  Mutex lock_;
  std::deque<Receipt> waiting_;
  uint64_t received_ = 0;
};

} // namespace adverb::model
