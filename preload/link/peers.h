// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What is known of each peer process, for `adverb stat --peers`: who it is, how it was admitted and
// what came of it. One entry for a process that asks this one and another if it is asked by it.
//
// A peer is known by the address of its host and the number that its process has given itself.
// Nobody vouches for that number: who lies about it is counted under another, or shares what is
// kept of a process of its own host. No right hangs on it.
//
// Counting is one relaxed add, by any thread. The service thread writes what has changed to the
// table in the shared page, a little later and all at once.
#pragma once

#include "link/wire.h"
#include "observe/peers.h"
#include "world/sync.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace adverb {
class World;
}

namespace adverb::link {

class Peers;

using PeerName = std::tuple<observe::PeerRole, std::string, wire::Id, bool>;

// So many a second; what is beyond is put off to the second that has room for it.
class Allowance {
public:
  explicit Allowance(uint32_t a_second) noexcept : a_second_(a_second) {}
  // How long one more waits, which is counted if it is to be; 0: not at all.
  std::chrono::nanoseconds wait(std::chrono::nanoseconds now, bool counts);

private:
  const uint32_t a_second_;
  Mutex lock_; // leaf
  std::chrono::nanoseconds since_{};
  uint64_t used_ = 0; // since then, and of the seconds to come
};

class Peer {
public:
  using Number = observe::PeerNumber;

  Peer(std::weak_ptr<Peers> peers, PeerName name, const observe::PeerEntry& who)
      : peers_(std::move(peers)), name_(std::move(name)), who_(who) {}

  // Any thread, any lock held.
  void count(Number n, int64_t by = 1) noexcept {
    counts_[static_cast<size_t>(n)].fetch_add(by, std::memory_order_relaxed);
    if (!changed_.load(std::memory_order_relaxed))
      change();
  }
  // To be written, soon.
  void change() noexcept;

  // For the room above: what a peer asks for that does not exist.
  static constexpr uint32_t misses_a_second = 1000;
  Allowance misses{misses_a_second};
  const std::string& address() const noexcept { return std::get<1>(name_); }

  void admit(observe::PeerLevel level) noexcept { level_ = level; }
  // What there is now, of one link more: while Peers collects.
  struct Now {
    uint64_t links = 0;
    uint64_t channels = 0;
    uint64_t qps_bound = 0;
    uint64_t qps_proven = 0;
  };
  void has(const Now& link) noexcept;

private:
  friend class Peers;
  static constexpr size_t no_slot = SIZE_MAX;

  const std::weak_ptr<Peers> peers_;
  const PeerName name_;
  const observe::PeerEntry who_; // but for the level and the numbers
  Atomic<observe::PeerLevel> level_{observe::PeerLevel::none};
  Atomic<bool> changed_{false};
  std::array<Atomic<int64_t>, observe::kPeerNumbers> counts_{};
  Now now_; // this and what follows: the lock of Peers
  size_t slot_ = no_slot;
  uint64_t last_ = 0; // when it was last there, by the count of Peers
};

class Peers : public std::enable_shared_from_this<Peers> {
public:
  // `collect` has each link tell what there is of it (Peer::has()); service thread.
  static std::shared_ptr<Peers> make(World& world, std::function<void()> collect) {
    return std::shared_ptr<Peers>(new Peers(world, std::move(collect)));
  }

  // The one of that name, or a new one. `vouched`: nobody who is not shares its entry.
  std::shared_ptr<Peer> meet(observe::PeerRole role, const std::string& address,
                             const wire::Id& process, bool vouched);
  // Something is not as it was written; any thread, any lock held.
  void publish_soon() noexcept;
  // Now; by the service thread.
  void publish();
  // At the end of the process, by any thread: what was counted since. Not where the lock is held,
  // perhaps by what this thread was interrupted in.
  void publish_last() noexcept;

private:
  Peers(World& world, std::function<void()> collect)
      : world_(world), collect_(std::move(collect)) {}
  using Held = std::unique_lock<Mutex>; // of lock_
  void write(const Held& held);
  bool find_slot(const std::shared_ptr<Peer>& peer, const Held& held);
  static observe::PeerEntry entry_of(const Peer& peer);
  void forget(const Peer& peer);

  // Far more than there may be links: who has none any more is forgotten when it is written that
  // there was one, and strangers may come faster than that.
  static constexpr size_t known_max = 16384;
  World& world_;
  const std::function<void()> collect_;
  Atomic<bool> due_{false};
  Mutex lock_; // held while it collects; else a leaf
  std::map<PeerName, std::shared_ptr<Peer>> known_;
  std::array<std::shared_ptr<Peer>, observe::kPeerEntries> slots_;
  observe::PeerEntry others_{}; // who have ended and have no slot any more
  bool summed_up_ = false;      // the last entry has been written
  uint64_t writes_ = 0;
};

} // namespace adverb::link
