// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The receive side's door: what is known of a message when its receive completes. A handler of the
// responder makes one for an immediate whose data travelled another way, and keeps the bytes of a
// SEND that came ahead of it; of all others the completion says enough. The receive's completion
// consumes it, and the program finds the bytes where it expects them and the length that was sent.
#pragma once

#include "model/sends_ahead.h"
#include "transfer/messages.h"
#include "world/sync.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <utility>

#include <infiniband/verbs.h>

namespace adverb::model {

struct Receipt {
  enum class Source : uint8_t {
    in_place, // the data is where the program expects it
    staged,   // in the staging blocks that stood in for the posted buffer
    ahead,    // in `kept`
  };
  // Among its receive-consuming messages, from 1. On UC, where any may be lost, it says by which
  // immediate it is known (transfer/messages.h).
  uint64_t number = 0;
  uint32_t bytes = 0; // that the completion reports
  Source source = Source::in_place;
  AheadBytes kept{};
};

// Those of one queue pair that handlers made, in order of their numbers. Thread-safe; its lock is a
// leaf.
class Receipts {
public:
  void expect(Receipt receipt) {
    const std::lock_guard hold(lock_);
    if (waiting_.size() == waiting_max)
      waiting_.pop_front();
    waiting_.push_back(std::move(receipt));
  }
  // SendsAhead::keep(); not between clear() and start(), nor of what has come already, nor of two
  // initiators: the second is the peer's queue pair after it was reset, which counts anew.
  transfer::Status keep_ahead(const transfer::RequestHeader& request,
                              std::span<const std::byte> bytes, registration::Budgets& budgets) {
    const std::lock_guard hold(lock_);
    if (ended_ || request.receive <= received_ ||
        (ahead_from_ != 0 && ahead_from_ != request.source))
      return transfer::Status::refused;
    ahead_from_ = request.source;
    looks_left_ = looks_most;
    const transfer::Status status = ahead_.keep(request, bytes, budgets);
    keeps_.store(!ahead_.empty(), std::memory_order_relaxed);
    return status;
  }
  // A receive was posted, which one may have waited for. True: somebody is to look again.
  bool look_again() {
    if (!keeps_.load(std::memory_order_relaxed)) [[likely]]
      return false;
    const std::lock_guard hold(lock_);
    looks_left_ = looks_most;
    return !ahead_.empty();
  }
  // Whether bytes are kept for a SEND that may come any moment. A program that looks at its memory
  // rather than polls finds them if somebody looks for that SEND; not for ever, as it may have been
  // given up.
  bool awaits_send() {
    const std::lock_guard hold(lock_);
    return !ahead_.empty() && looks_left_ != 0 && --looks_left_ != 0;
  }

  // One more message has arrived, with success. One of before start() bears its own length. What a
  // handler said counts for an immediate only: a message that came through the receive is where the
  // device put it, whatever was foretold. (On UC a message may be lost, and the count be wrong.)
  Receipt consume(const ibv_wc& wc) {
    const bool through_receive = wc.opcode == IBV_WC_RECV;
    Receipt plain{.bytes = wc.byte_len,
                  .source = through_receive ? Receipt::Source::staged : Receipt::Source::in_place};
    const std::lock_guard hold(lock_);
    if (ended_)
      return plain;
    ++received_;
    if (keeps_.load(std::memory_order_relaxed)) [[unlikely]] {
      AheadBytes kept = ahead_.take(received_, through_receive && wc.byte_len == 0);
      keeps_.store(!ahead_.empty(), std::memory_order_relaxed);
      if (kept)
        return {.number = received_,
                .bytes = static_cast<uint32_t>(kept.all().size()),
                .source = Receipt::Source::ahead,
                .kept = std::move(kept)};
    }
    if (!waiting_.empty() && (waiting_.front().number & transfer::by_immediate) != 0)
      return through_receive ? std::move(plain) : consume_by(wc.imm_data, std::move(plain));
    while (!waiting_.empty() && waiting_.front().number < received_)
      waiting_.pop_front();
    if (through_receive || waiting_.empty() || waiting_.front().number != received_)
      return plain;
    Receipt receipt = std::move(waiting_.front());
    waiting_.pop_front();
    return receipt;
  }

  // The connection has ended, and with it the count: a shared receive queue may hear of its last
  // messages later still.
  void clear() {
    const std::lock_guard hold(lock_);
    waiting_.clear();
    ahead_.clear();
    keeps_.store(false, std::memory_order_relaxed);
    ahead_from_ = received_ = 0;
    ended_ = true;
  }
  // Another begins: before its first message can arrive.
  void start() {
    const std::lock_guard hold(lock_);
    ended_ = false;
  }

private:
  static constexpr size_t waiting_max = 1024;  // of immediates that were lost, most of them
  static constexpr uint32_t looks_most = 1000; // about 3 s (drain_pace.h)

  // Those before it were lost: what was foretold comes in order.
  Receipt consume_by(uint32_t immediate, Receipt plain) {
    const auto at =
        std::ranges::find(waiting_, transfer::by_immediate | immediate, &Receipt::number);
    if (at == waiting_.end())
      return plain;
    Receipt receipt = std::move(*at);
    waiting_.erase(waiting_.begin(), at + 1);
    return receipt;
  }

  Mutex lock_;
  std::deque<Receipt> waiting_;
  SendsAhead ahead_;
  uint64_t ahead_from_ = 0; // handle of the initiator's queue pair
  uint32_t looks_left_ = 0;
  Atomic<bool> keeps_{false}; // perhaps
  uint64_t received_ = 0;
  bool ended_ = false;
};

} // namespace adverb::model
