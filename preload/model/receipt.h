// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The receive side's door: what is known of a message when its receive completes. A handler of the
// responder makes one for a message whose data travelled another way; for all others the receive
// queue does, which knows whether the buffer was staged. The receive's completion consumes it, and
// the program finds the bytes where it expects them and the length that was sent.
#pragma once

#include "world/sync.h"

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

namespace adverb::model {

struct Receipt {
  enum class Source : uint8_t {
    in_place, // the data is where the program expects it
    staged,   // in the staging blocks that stood in for the posted buffer
  };
  uint64_t incarnation = 0; // handle of the queue pair the message came to
  uint64_t number = 0;      // among its receive-consuming messages, from 1
  uint32_t bytes = 0;       // that the completion reports
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

  // One more message has arrived: what a handler said of it, if any did.
  std::optional<Receipt> consume() {
    const std::lock_guard hold(lock_);
    ++received_;
    while (!waiting_.empty() && waiting_.front().number < received_)
      waiting_.pop_front();
    if (waiting_.empty() || waiting_.front().number != received_)
      return std::nullopt;
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
