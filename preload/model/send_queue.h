// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The send queue of a managed queue pair: every work request the program posted, in order, from
// post to completion.
//
// Each request is decided once and goes one of these ways:
//   offload  posted to the provider on the program's queue pair, local elements made usable
//   unload   carried in parts to the peer's responder, answered part by part
//   replay   posted to the provider as it stands, with its reserved key, so that the device itself
//            makes the error (status, NAK, async event, flush) that stock would
//   flush    posted to a queue pair already in error, to be flushed behind the others
// WRITE_WITH_IMM and atomics on unpinned regions first go to the responder and then, as a
// zero-length WRITE_WITH_IMM or with the granted key, to the provider.
//
// Order (design: RC executes in order): a request is issued only when all before it are issued, and
// changing way waits until everything issued the other way is done. So at any time only one way is
// in flight, except WRITE after WRITE under order "relaxed". Completions leave in order.
//
// Not thread-safe: the queue pair's lock guards it. Nothing here blocks.
#pragma once

#include "model/completion.h"
#include "registration/regions.h"
#include "transfer/initiator.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::model {

class Qp;

enum class Way : uint8_t { undecided, offload, unload, replay, flush };
enum class Stage : uint8_t { queued, parts, posted, done };

struct SendRequest {
  uint64_t seq = 0;
  ibv_send_wr wr{};     // the program's, sg_list pointing into this queue
  uint64_t length = 0;  // bytes of all elements
  uint32_t inlined = 0; // bytes kept in this queue's inline store
  bool signaled = false;
  bool forced = false; // posted signaled although the program did not ask
  Way way = Way::undecided;
  Stage stage = Stage::queued;
  bool bad_local = false; // replay: it is the local elements that are at fault
  Completion result;      // once done
  uint64_t sent = 0;      // unload: bytes handed to the link
  uint32_t parts = 0;     // unload: parts unanswered
  bool announced = false; // unload: data is placed, the provider's part of it is next
  uint32_t granted = 0;   // atomic: the owner's real rkey
  bool holding = false;
};

class SendQueue {
public:
  SendQueue(Qp& qp, const ibv_qp_cap& cap, bool all_signaled);
  ~SendQueue();

  // Takes a copy of a work request behind all others. errno value: ENOMEM full, EINVAL malformed.
  int append(const ibv_send_wr& wr);
  // Takes back those from `seq` on that were appended and not issued.
  void truncate(uint64_t seq);
  uint64_t tail() const noexcept { return tail_; }
  SendRequest& at(uint64_t seq) noexcept { return ring_[seq % ring_.size()]; }

  // Issues what may be issued. If the provider refuses the request `sync` (just appended), it is
  // taken back and the provider's errno returned; else 0.
  int pump(uint64_t sync = UINT64_MAX);

  void on_provider_completion(const Completion& completion);
  void on_reply(const transfer::ReplyHeader& reply, std::span<const std::byte> payload);
  void on_down();

  // The queue pair went to ERR: what is not done is posted to be flushed.
  void fail_all();
  // RESET or destroy: everything is forgotten without completions.
  void clear();
  void pause(bool on) noexcept { paused_ = on; }
  // RESET or destroy has begun: completions are still taken, nothing more is issued.
  void stop() noexcept { stopped_ = true; }
  void resume() { // it did not come about
    stopped_ = false;
    pump();
  }

  bool unloading() noexcept {
    return parts_out_ != 0 || (next_ < tail_ && at(next_).stage == Stage::parts);
  }
  bool all_issued() const noexcept { return next_ == tail_; }
  bool idle() const noexcept { return head_ == tail_; }
  bool waits_for_provider() const noexcept { return blocked_on_provider_; }
  // Some time after the queue became idle: gives grants back unless it is busy again.
  void grants_idle();

private:
  struct GrantHeld {
    uint32_t key;
    uint64_t start;
    uint64_t bytes;
    uint32_t rkey;
    uint64_t id;
  };

  enum class Step { issued, wait, refused };

  Way decide(SendRequest& r);
  Step issue(SendRequest& r, int& why);
  Step post(SendRequest& r, int& why);
  Step replay(SendRequest& r, int& why);
  bool borrow_own_bytes(SendRequest& r, ibv_send_wr& wr);
  Step flush(SendRequest& r, int& why);
  Step unload(SendRequest& r, int& why);
  Step with_grant(SendRequest& r, int& why);
  bool send_part(SendRequest& r);
  bool gather(const SendRequest& r, uint64_t from, std::byte* to, size_t bytes);
  bool scatter(const SendRequest& r, uint64_t from, std::span<const std::byte> bytes);
  bool provider_must_finish(const SendRequest& next);
  bool parts_must_finish(const SendRequest& next) const;
  void wait_for_provider(const SendRequest& next);
  void ask_key(uint32_t rkey);
  void halt_at(SendRequest& r, transfer::Status status);
  void finish_posted(uint64_t up_to);
  int hand_over(SendRequest& r, ibv_send_wr& wr);
  void restart(uint64_t seq);
  void finish_copies(SendRequest& r);
  void release(SendRequest& r);
  void retire(uint64_t announced = UINT64_MAX);
  void release_grants();
  transfer::RequestHeader header(const SendRequest& r, transfer::Kind kind) const;

  registration::Hold* holds(const SendRequest& r) { return &holds_[r.seq % ring_.size() * sges_]; }
  std::byte* inline_store(const SendRequest& r) {
    return &inline_[r.seq % ring_.size() * inline_bytes_];
  }

  Qp& qp_;
  const bool all_signaled_;
  const uint32_t sges_;
  const uint32_t inline_bytes_;
  std::vector<SendRequest> ring_;
  std::vector<ibv_sge> sge_store_;
  std::vector<registration::Hold> holds_;
  std::vector<std::byte> inline_;
  std::vector<ibv_sge> scratch_;

  uint64_t head_ = 0;            // oldest not retired
  uint64_t next_ = 0;            // next to issue
  uint64_t tail_ = 0;            // next free
  uint32_t posted_ = 0;          // with the provider, completion not seen
  uint32_t posted_nonwrite_ = 0; // of those, not plain WRITEs
  uint64_t last_posted_ = 0;
  bool last_posted_signaled_ = false;
  bool marker_out_ = false;
  uint32_t parts_out_ = 0; // unanswered parts of all requests
  uint32_t reads_out_ = 0; // unanswered parts of READs
  uint32_t run_ = 1;
  uint64_t receives_ = 0;  // receive-consuming messages issued on this connection
  bool failed_ = false;    // the queue pair is in error
  bool replaying_ = false; // a replay's completion decides what comes next
  bool paused_ = false;    // SQD
  bool stopped_ = false;
  bool blocked_on_provider_ = false;
  std::optional<uint32_t> asked_key_;
  bool grant_asked_ = false;
  std::vector<GrantHeld> grants_;
  bool grant_timer_ = false;
};

} // namespace adverb::model
