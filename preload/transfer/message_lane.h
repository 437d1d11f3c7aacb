// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The lane of the ways that ask the peer's responder: one queue pair's messages over its link, in
// order, each answered.
//
// A message is kept open while the queue issues, so that small requests share it: until it is full,
// something else is sent, or commit() says that no more come now. Nothing waits for time to pass.
//
// It counts parts in flight, and every part carries a run. cut() raises it: the responder executes
// nothing of an older run behind a failure (messages.h), and answers of one no longer count here.
//
// Not thread-safe: the queue pair's lock guards it.
#pragma once

#include "steering/way.h"
#include "transfer/initiator.h"
#include "transfer/messages.h"

#include <memory>
#include <optional>

namespace adverb {
class World;
}

namespace adverb::transfer {

// A way that asks the peer's responder by messages.
class MessageWay : public steering::Way {
public:
  // The responder has answered a message of `r`. `reply` is well-formed.
  virtual void answered(steering::Request& r, const ReplyHeader& reply,
                        std::span<const std::byte> payload) = 0;
};

class MessageLane final : public steering::Lane {
public:
  // `lossy`: the queue pair's own messages may be lost (UC).
  MessageLane(World& world, steering::Ring& ring, bool lossy = false)
      : world_(world), ring_(ring), lossy_(lossy) {}

  // The link is there: `handle` names the queue pair at our end, `remote` the peer's at its own.
  void join(std::shared_ptr<Initiator> initiator, uint64_t handle, uint64_t remote);
  // It is gone or no longer wanted. The caller detaches from what is returned, if anything.
  std::shared_ptr<Initiator> leave();
  bool joined() const noexcept { return initiator_ != nullptr; }
  bool down() const { return initiator_->down(); }
  // The peer has not answered for long, as one of its queue pairs has noted, and nothing has come
  // since.
  bool is_silent() const noexcept { return initiator_ == nullptr || initiator_->is_silent(); }
  void note_silence() noexcept {
    if (initiator_ != nullptr)
      initiator_->note_silence();
  }

  // What the peer has said of a key; ask_key() has it say so.
  steering::KeyVerdict verdict(uint32_t rkey) const noexcept {
    return target_gone_ ? device_judges : initiator_->key(rkey);
  }
  // What a key is likely to be that nothing is known of.
  bool key_likely_virtual() const noexcept { return initiator_->key_likely_virtual(); }
  // Whether it is one that the peer's device judges. If that is known, `answer` says so as long as
  // the lane is joined.
  bool is_real(uint32_t rkey, steering::KeyAnswer& answer) const noexcept {
    const auto& changes = initiator_->key_changes();
    const uint32_t at = changes.load(std::memory_order_acquire); // before the verdict
    const steering::KeyVerdict found = verdict(rkey);
    if (found.known())
      answer = {rkey, at, &changes};
    return found.kind == steering::KeyVerdict::Kind::real;
  }
  void learn(uint32_t rkey, steering::KeyVerdict::Kind kind) noexcept {
    initiator_->learn(rkey, kind);
  }
  // The owner's CPU serves nothing under this key any more.
  void forget_served(uint32_t key) { initiator_->forget_served(key); }
  // As the device has refused a key.
  void forget_real_keys() noexcept {
    if (initiator_)
      initiator_->forget_real_keys();
  }
  void ask_key(uint32_t rkey);

  // Whether the request may go by a lease of its bytes.
  bool is_leased(const steering::Request& r) const;
  // The same of a READ that may go by a view, and one.
  bool is_for_view(const steering::Request& r) const;
  bool is_viewed(const steering::Request& r) const;
  const std::shared_ptr<Leases>& leases() const noexcept { return initiator_->leases(); }
  // The request is sent to the peer's CPU: its bytes are asked for if that happens again and again.
  void touch(const steering::Request& r) noexcept;
  // The peer's CPU has answered the READ, and said whether there are views: then one is asked for.
  void brought(const steering::Request& r, bool has_views) noexcept;

  bool lossy() const noexcept { return lossy_; }

  // As of the link.
  void judge_path() noexcept { initiator_->judge_path(); }
  bool pays() const noexcept { return initiator_->pays(); }

  // Whether the peer may take the bytes of SENDs ahead, and until the link is joined anew that it
  // takes none.
  bool takes_ahead() const noexcept { return takes_ahead_ && initiator_->sends_known(); }
  void no_sends_ahead() noexcept { takes_ahead_ = false; }
  // How many SENDs have bytes under way that are not with the device yet: of what else the queue
  // pair carries, nothing may be executed before them.
  void set_sends_ahead(size_t count) noexcept {
    sends_ahead_ = count;
    has_sent_ahead_ |= count != 0;
  }
  size_t sends_ahead() const noexcept { return sends_ahead_; }
  // Since the link was joined.
  bool has_sent_ahead() const noexcept { return has_sent_ahead_; }

  // How the peer knows the immediate that is to be the connection's `number`th to take a receive.
  uint64_t receipt(const steering::Request& r, uint64_t number) const noexcept {
    return lossy_ ? by_immediate | r.wr.imm_data : number;
  }

  size_t payload_max() const { return initiator_->payload_max(); }
  RequestHeader header(const steering::Request& r, Kind kind) const;
  // Room for a request of header and `payload` bytes, whose reply has `brings` bytes; it is not
  // sent unless send() follows. Its kind is ordered by queue pair, and not of any shape: others may
  // share its message. Null: no credit now, Source::on_credit() follows.
  std::byte* begin(size_t payload, size_t brings);
  // Sends a part of `r`, whose payload lies behind the header's place already. `owner` hears the
  // answer; a part answered `ok` is taken off r.parts before.
  void send(steering::Request& r, MessageWay& owner, std::byte* part, const RequestHeader& h);
  // Sends what is no part of the request's data: it is not counted as in flight.
  void send_aside(steering::Request& r, MessageWay& owner, std::byte* part, const RequestHeader& h);
  // Sends what nobody waits for, if there is a credit; else Source::on_credit() follows.
  bool tell(Kind kind, uint64_t address);

  void on_reply(const ReplyHeader& reply, std::span<const std::byte> payload);

  // What is open is on its way.
  void commit() override {
    if (open_.message != nullptr)
      send_open();
  }
  bool can_be_cut() const noexcept override { return true; }
  void cut(uint64_t from) override;

private:
  void ask_for_lease(const steering::Request& r);
  void ask_for_view(const steering::Request& r);
  std::byte* begin_alone();
  void put(std::byte* part, const RequestHeader& h);
  void send_open();

  World& world_;
  steering::Ring& ring_;
  const bool lossy_;
  std::shared_ptr<Initiator> initiator_;
  uint64_t handle_ = 0;
  uint64_t remote_ = 0;
  uint32_t run_ = 1;
  std::optional<uint32_t> asked_; // a key, one at a time
  // Leases and views asked for and not answered, and the epoch of what was known of the last one's
  // key.
  static constexpr unsigned leasing_max = 4;
  unsigned leasing_ = 0;
  uint32_t leasing_epoch_ = 0;
  uint32_t unleased_ = 0; // epoch of the last key of which nothing is leased
  // The peer's queue pair is no more: whatever goes to it the device shall judge.
  static constexpr steering::KeyVerdict device_judges{UINT32_MAX, steering::KeyVerdict::Kind::real,
                                                      steering::KeyVerdict::none};
  bool target_gone_ = false;
  bool takes_ahead_ = true;
  bool has_sent_ahead_ = false;
  size_t sends_ahead_ = 0;
  struct Open { // the message that is not sent yet
    std::byte* message = nullptr;
    size_t bytes = 0;  // of requests in it
    size_t brings = 0; // bytes of their replies
  };
  Open open_;
  Open begun_; // as it is with one more
};

// Says that the peer's responder refused `r`; at most one line a second.
void log_refused(World& world, const steering::Request& r, Status status);

} // namespace adverb::transfer
