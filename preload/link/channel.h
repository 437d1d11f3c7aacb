// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A channel carries messages between two processes, whole and in order. It is opened for a
// protocol, whose user at each end makes of the messages what it will: the client asks, the server
// replies.
//
// The product's channel is a companion queue pair (companion.h); a test's needs neither device nor
// thread.
#pragma once

#include "link/peers.h"
#include "link/progress.h"
#include "service/service.h"

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>

namespace adverb::link {

class Channel;

// One received message; its buffer goes back to where it came from with it.
class RxBuffer {
public:
  class Pool {
  public:
    virtual void take_back(uint32_t slot) noexcept = 0; // any thread

  protected:
    ~Pool() = default;
  };

  RxBuffer(Pool& pool, uint32_t slot, std::span<const std::byte> bytes) noexcept
      : pool_(&pool), slot_(slot), bytes_(bytes) {}
  RxBuffer(RxBuffer&& other) noexcept
      : pool_(other.pool_), slot_(other.slot_), bytes_(other.bytes_) {
    other.pool_ = nullptr;
  }
  RxBuffer& operator=(RxBuffer&&) = delete;
  ~RxBuffer() { release(); }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  void release() noexcept {
    if (pool_ != nullptr)
      pool_->take_back(slot_);
    pool_ = nullptr;
  }

private:
  Pool* pool_;
  uint32_t slot_;
  std::span<const std::byte> bytes_;
};

// One end of one channel, from its opening to its end. Every call is under the progress lock.
class ChannelUser {
public:
  virtual ~ChannelUser() = default;
  virtual void on_message(RxBuffer message) = 0;
  virtual void on_tx_free() = 0; // after acquire() found none
  // A queue pair of this process is bound to the peer's no more (Channel::bind()).
  virtual void on_unbound(uint64_t handle) = 0;
  // Channel::pays() answers otherwise than before.
  virtual void on_path_judged() {}
  virtual void on_down() = 0; // exactly once, and the last call
};

// What channels are opened for. One object serves all channels of its kind; thread-safe.
class Protocol {
public:
  virtual ~Protocol() = default;

  // Known to peers. Both ends speak the older of their two versions.
  virtual uint8_t id() const noexcept = 0;
  virtual uint8_t version() const noexcept = 0;

  // Bytes of the longest message, and how many requests may be unanswered on a channel, where the
  // links of its device may pin `budget` bytes in all, of which `left` are left.
  struct Size {
    size_t message;
    uint32_t depth;
  };
  virtual Size size(uint64_t budget, uint64_t left) const noexcept = 0;

  // The user of a channel that has just been opened, under the progress lock.
  virtual std::shared_ptr<ChannelUser> open(const std::shared_ptr<Channel>& channel) = 0;
};

class Channel : public std::enable_shared_from_this<Channel> {
public:
  enum class Role : uint8_t { client, server };

  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Registered memory for one message of message_max() bytes, or nullptr. All four thread-safe, and
  // may be called with any lock held.
  virtual std::byte* acquire() noexcept = 0;
  virtual void send(std::byte* message, size_t bytes) noexcept = 0;
  virtual void abandon(std::byte* message) noexcept = 0;
  // It is over, seen here or told from elsewhere: its user hears of it soon.
  virtual void close() noexcept = 0;

  // Whether adverb itself makes good what its path loses, and not the device.
  virtual bool repairs() const noexcept { return true; }
  // Measures from now on whether that costs less than the losses do under the device, and tells the
  // user when pays() changes. Both any thread.
  virtual void judge_path() noexcept {}
  virtual bool pays() const noexcept { return repairs(); }

  Progress& progress() const noexcept { return progress_; }
  Role role() const noexcept { return role_; }
  // Requests that may be unanswered. One more message may be under way each way: the proof that
  // opens a companion, later what the protocol does beside its requests.
  uint32_t credits() const noexcept { return credits_; }
  size_t message_max() const noexcept { return message_max_; }
  uint8_t version() const noexcept { return version_; } // of its protocol, at both ends
  bool down() const noexcept { return down_.load(std::memory_order_acquire); }

  // Whose the jobs are that a message is reason for: the peer process's, whatever it asks over.
  // Null: nobody's. Set before the channel opens.
  const std::shared_ptr<service::Party>& party() const noexcept { return party_; }
  void set_party(std::shared_ptr<service::Party> party) noexcept { party_ = std::move(party); }
  // What is known of who is at the other end, from before it is open; null: nobody keeps it.
  Peer* peer() const noexcept { return peer_.get(); }
  void set_peer(std::shared_ptr<Peer> peer) noexcept { peer_ = std::move(peer); }

  // What the peer may ask for over the server's end: `peers`, a queue pair of its, is bound to that
  // of this process. Nothing is looked up by a name that a peer gives but among these, and while it
  // is not `proven` that the peer is who it says, not there either. These take the progress lock.
  void bind(uint64_t handle, uint64_t peers, bool proven);
  void prove(uint64_t handle, uint64_t peers);
  void unbind(uint64_t handle, uint64_t peers);
  // Under the progress lock. `ended`: it was bound until just now, and what was sent before may
  // arrive yet.
  enum class Binding : uint8_t { none, ended, bound };
  Binding binding(uint64_t handle, uint64_t peers) const noexcept;
  // Calls `each` with the handle of every queue pair of this process that is bound.
  template <typename Each> void each_bound(const Each& each) const {
    assert(progress_.lock().held());
    for (const auto& [handle, bound] : bound_)
      if (!bound.ended)
        each(handle);
  }

  // Under the progress lock. The user refers to its channel, so the channel lets go of it at its
  // end; null then, and before it is open.
  const std::shared_ptr<ChannelUser>& user() const noexcept {
    assert(progress_.lock().held());
    return user_;
  }

protected:
  Channel(Progress& progress, Role role) noexcept : progress_(progress), role_(role) {}
  virtual ~Channel() = default;

  // Under the progress lock.
  void opened(Protocol& protocol) {
    assert(progress_.lock().held() && !user_);
    user_ = protocol.open(shared_from_this());
  }
  void ended() {
    assert(progress_.lock().held());
    if (const auto user = std::move(user_))
      user->on_down();
    if (peer_)
      peer_->change();
  }

  uint32_t credits_ = 0;
  size_t message_max_ = 0;
  uint8_t version_ = 0;
  Atomic<bool> down_{false};

private:
  // The control connection may overtake what is under way on the channel. At most credits() of
  // these are; far more that have ended are remembered.
  static constexpr size_t ended_max = 1024;
  struct Bound {
    uint64_t peers;
    bool ended;
    bool proven;
  };

  Progress& progress_;
  const Role role_;
  std::shared_ptr<Peer> peer_;
  std::shared_ptr<ChannelUser> user_;
  std::shared_ptr<service::Party> party_;
  std::unordered_map<uint64_t, Bound> bound_;       // by handle; progress lock
  std::deque<std::pair<uint64_t, uint64_t>> ended_; // handle and the peer's, in that order of time
};

} // namespace adverb::link
