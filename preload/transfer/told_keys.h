// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The end of a virtual key is acknowledged before the key is used again.
//
// A peer that has been told anything of a key may act on it later. So the owner's end of each
// channel holds the keys it told of, and with them keeps them out of the pool. When a key's region
// is gone the peer gets a notice; its initiator forgets what it knew and acknowledges, behind every
// request it sent before. Then, or at the end of the channel, the key is let go.
//
// Leases are called back in the same way (lessor.h): what acknowledges that waits until nothing is
// under way by any of them.
//
// Flow: one notice at a time is unacknowledged, on the one message that a channel carries each way
// beside its requests; keys that end meanwhile go with the next. What waits is bounded by what the
// peer was told: a peer that is stopped costs its keys, and nothing of its traffic. One that goes
// on to ask of keys, and has not acknowledged a notice for a minute, does not mean to: it is cut
// off.
#pragma once

#include "link/channel.h"
#include "registration/keys.h"
#include "registration/regions.h"
#include "world/sync.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace adverb {
class World;
}

namespace adverb::transfer {

class ToldKeys;

// Which channels told of which key of this process. Thread-safe; its lock is a leaf.
class KeyEnds {
public:
  void watch(const registration::Key& key, const std::shared_ptr<ToldKeys>& teller);
  // False: the key has ended, and `teller` has heard or is about to.
  bool unwatch(const registration::Key& key, const ToldKeys& teller);
  // The key's region is gone. No lock held.
  void ended(const std::shared_ptr<registration::Key>& key);

private:
  Mutex lock_;
  std::unordered_map<const registration::Key*, std::vector<std::weak_ptr<ToldKeys>>> tellers_;
};

// The owner's end of one channel.
class ToldKeys final : public std::enable_shared_from_this<ToldKeys> {
public:
  static constexpr size_t told_max = 1024; // while a notice is out, once `patience` is over
  static constexpr std::chrono::seconds patience{60};

  ToldKeys(World& world, KeyEnds& ends, std::shared_ptr<link::Channel> channel);

  // Under the progress lock.

  // The peer is about to be told something of the region under `key`. A key that names none now is
  // none's business: what is said of it, that it is virtual, stays true.
  void tell(const registration::Regions& regions, uint32_t key) {
    if (keeps_count_ && !told_.contains(key))
      tell_first(regions, key);
  }
  void hold(std::shared_ptr<registration::Key> key);
  // The peer is told of a key under which the CPU serves what the device could as well.
  void tell_served(const registration::Regions& regions, uint32_t key) {
    tells_served_ = true;
    tell(regions, key);
  }
  bool tells_served() const noexcept { return tells_served_; }
  // Whether a notice of that number is out; acknowledged() lets its keys go.
  bool awaits(uint32_t number);
  void acknowledged(uint32_t number);
  void on_tx_free();
  void close(); // the channel is down

  // Leases of these numbers are called back by the next notice.
  void recall(std::span<const uint32_t> leases);
  // Those of a notice that has been acknowledged: they are back.
  std::vector<uint32_t> take_returned() { return std::exchange(returned_, {}); }

  // Any thread.
  void ended(std::shared_ptr<registration::Key> key);

private:
  using Keys = std::vector<std::shared_ptr<registration::Key>>;

  void tell_first(const registration::Regions& regions, uint32_t key);
  void notify(const std::lock_guard<Mutex>& held);
  bool notify_of_leases(const std::lock_guard<Mutex>& held);
  bool one_is_out() const noexcept { return !notified_.empty() || !recalled_.empty(); }
  bool overdue();

  World& world_;
  KeyEnds& ends_;
  const std::shared_ptr<link::Channel> channel_;
  bool tells_served_ = false; // of a key; progress lock
  const bool keeps_count_;    // an older peer knows no notices, and is told nothing that ends
  std::unordered_map<uint32_t, std::shared_ptr<registration::Key>> told_; // progress lock

  Mutex lock_; // leaf, but for the channel's
  std::deque<std::shared_ptr<registration::Key>> waiting_;
  Keys notified_;
  std::vector<uint32_t> recalls_; // leases that are to be called back
  std::vector<uint32_t> recalled_;
  uint32_t number_ = 0; // of the notice that is out
  std::chrono::nanoseconds notified_at_{};
  size_t told_since_ = 0;
  bool closed_ = false;
  std::vector<uint32_t> returned_; // progress lock
};

} // namespace adverb::transfer
