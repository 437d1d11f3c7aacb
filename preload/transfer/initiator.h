// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The initiator's end of a link: requests out under credits, replies back to the queue pair that
// asked, and what the peer has said about its keys.
//
// Every message of requests is answered by one message, so credits are plain counting: at most
// Channel::credits() of them are unanswered, and the link keeps that many receive buffers posted.
// A queue pair whose requests meet a slow page at the peer keeps the credits that it has till the
// page comes, and others are not to wait for that. So a queue pair that is alone leaves one; where
// several share the link none has more than it leaves free, so that of two that are slow the second
// has half of what the first left (the threshold of Choudhury and Hahne, "Dynamic Queue Length
// Thresholds for Shared-Memory Packet Switches", 1998); and one that begins has one, and one more
// with each answer, so that those which are slow from the start have one each.
//
// Locks: Initiator's own is a leaf and may be taken under a queue pair's. Source functions are
// called under the device's progress lock and take the queue pair's.
#pragma once

#include "link/channel.h"
#include "observe/trace.h"
#include "transfer/leases.h"
#include "transfer/messages.h"
#include "transfer/verdicts.h"
#include "world/sync.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace adverb {
class World;
}

namespace adverb::transfer {

// A queue pair that sends requests.
class Source {
public:
  // Of one message, all well-formed: next_reply() gives one after the other.
  virtual void on_replies(std::span<const std::byte> replies) = 0;
  virtual void on_credit() = 0; // wait() was called and a credit has become free
  // These keys of the peer's name nothing any more, and what was known of them is forgotten. When
  // it returns, nothing is sent under them that was begun before.
  virtual void on_keys_ended(std::span<const uint32_t> keys) = 0;
  // Leases have been called back: requests under way are to be known to be complete soon.
  virtual void on_recall() {}
  // What Initiator::pays() says has changed.
  virtual void on_path_judged() {}
  virtual void on_down() = 0; // the link is lost: unanswered requests will not be answered

protected:
  ~Source() = default;
};

class Initiator final : public link::ChannelUser, public std::enable_shared_from_this<Initiator> {
public:
  Initiator(World& world, std::shared_ptr<link::Channel> channel);

  // The one at the end of this channel; nullptr when the link is already lost. Takes the device's
  // progress lock.
  static std::shared_ptr<Initiator> of(const std::shared_ptr<link::Channel>& channel);

  // A queue pair of this process whose requests carry `handle` as source. detach() returns when no
  // call into `source` is running or will be made; not to be called under the queue pair's lock.
  void attach(uint64_t handle, Source* source);
  void detach(uint64_t handle);

  // Room for one message of that queue pair's, with its credit taken; nullptr: none now, its
  // on_credit() will be called. The caller fills in requests and calls send() or cancel().
  std::byte* begin(uint64_t handle);
  // The same for what nobody waits for, the last credit too; nullptr: none now, and no more.
  std::byte* begin_aside(uint64_t handle);
  void send(std::byte* message, size_t bytes);
  void cancel(uint64_t handle, std::byte* message);

  size_t payload_max() const { return channel_->message_max() - header_bytes; }
  // Bytes of requests that may share a message, and of replies. 0: the peer knows of no sharing.
  size_t shared_max() const noexcept {
    return channel_->version() < version_sharing
               ? 0
               : std::min<size_t>(transfer::shared_max, channel_->message_max());
  }
  bool down() const { return channel_->down(); }
  // on_down() has been or is being passed on; who attached before it hears of it.
  bool lost() const;
  // Until the next message. Any thread.
  bool is_silent() const noexcept { return silent_.load(std::memory_order_relaxed); }
  void note_silence() noexcept { silent_.store(true, std::memory_order_relaxed); }

  // What is known of a peer's key; no lock is taken.
  steering::KeyVerdict key(uint32_t rkey) const noexcept { return verdicts_.find(rkey); }
  bool key_likely_virtual() const noexcept { return verdicts_.likely_virtual(); }
  const Atomic<uint32_t>& key_changes() const noexcept { return verdicts_.changes(); }
  void learn(uint32_t rkey, steering::KeyVerdict::Kind kind,
             uint32_t served = steering::KeyVerdict::not_asked) noexcept {
    verdicts_.learn(rkey, kind, served);
  }
  void forget_served(uint32_t key) { verdicts_.forget_served({&key, 1}); }
  void forget_real_keys() noexcept { verdicts_.forget_real(); }

  // What is leased of the peer's memory. Outlives this where a request uses one.
  const std::shared_ptr<Leases>& leases() const noexcept { return leases_; }
  // Whether the peer knows of leases.
  bool leases_known() const noexcept { return channel_->version() >= version_leases; }
  bool views_known() const noexcept { return channel_->version() >= version_views; }
  // Whether the peer knows of bytes that go ahead of SENDs, and these gain by it.
  bool sends_known() const noexcept {
    return channel_->version() >= version_sends && channel_->repairs();
  }

  // Whether requests that the device could carry go better by this link; what is measured for that
  // is measured from judge_path() on.
  void judge_path() noexcept { channel_->judge_path(); }
  bool pays() const noexcept { return channel_->pays(); }

  // From the channel, under the device's progress lock.
  void on_message(link::RxBuffer message) override;
  void on_tx_free() override;
  void on_unbound(uint64_t) override {} // the other end's
  void on_path_judged() override;
  void on_down() override;

private:
  struct Attached {
    Source* source;
    uint32_t unanswered = 0; // messages of its
    uint32_t answered = 0;   // since it had no more to say for a while
    bool denied = false;     // a credit, since it had the last
    void begin() noexcept;
    void answer() noexcept;
  };
  bool may_begin(const Attached* attached) const; // under the lock
  std::vector<Source*> sources() const;
  void resume();
  void count(const ReplyHeader& first, uint32_t replies);
  void reject(const char* what, size_t bytes);
  void on_notice(link::RxBuffer message);
  void acknowledge();
  void recalled(std::span<const uint32_t> leases, uint32_t notice);
  bool add(const Lease& lease);
  void trace_end(observe::LeaseEnd why, size_t leases) noexcept;
  void leased(const ReplyHeader& reply);
  void viewed(const ReplyHeader& reply, std::span<const std::byte> pattern);
  void all_back();
  void all_back_now();
  void end_term_later();
  void yield();

  World& world_;
  const std::shared_ptr<link::Channel> channel_;
  mutable Mutex lock_;
  uint32_t unanswered_ = 0;
  Atomic<bool> silent_{false};
  bool lost_ = false;
  std::unordered_map<uint64_t, Attached> sources_;
  std::deque<uint64_t> waiting_; // handles, in the order they came
  Verdicts verdicts_;
  // Progress lock:
  std::optional<uint32_t> unacknowledged_; // number of a notice
  std::optional<uint32_t> returning_;      // of one whose leases are still used
  std::vector<uint32_t> to_yield_;         // leases, for want of a credit
  bool timed_ = false;
  const std::shared_ptr<Leases> leases_; // its own locks
};

} // namespace adverb::transfer
