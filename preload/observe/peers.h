// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The table of peer processes: who has links with this one, as it lies in the shared page.
//
// One writer at a time, readers in any process. Each entry has a sequence number, odd while it is
// written; who reads it before and after and finds the same even one has a whole entry (Lameter,
// "Effective synchronization on Linux/NUMA systems", 2005: seqlocks). Which peer has which entry is
// the links' affair (link/peers.h).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace adverb::observe {

enum class PeerNumber : uint8_t {
#define PEER_GAUGE(name, help) name,
#define PEER_COUNTER(name, help) name,
#define PEER_BOUND(name, help) bound_##name,
#include "observe/peers.def"
  kCount
};

inline constexpr size_t kPeerNumbers = static_cast<size_t>(PeerNumber::kCount);

/// Who asks whom.
enum class PeerRole : uint8_t {
  none,      ///< of the last entry, which sums up both
  initiator, ///< it asks this process
  owner,     ///< this process asks it
};

/// How a peer was admitted.
enum class PeerLevel : uint8_t {
  none,    ///< not at all
  host,    ///< its queue pairs are proven by being used: by whoever can on its host
  key,     ///< it has shown the pre-shared key besides
  vouched, ///< by the kernel: a process of this user's or of root's on this host
};

/// What is known of one peer process that asks, or is asked.
struct PeerEntry {
  char address[64]; ///< of its host
  uint8_t process[16];
  PeerRole role;
  PeerLevel level;
  uint8_t zero[2];
  uint32_t processes; ///< that are summed up here; 1 but in the last entry
  int64_t numbers[kPeerNumbers];

  int64_t& operator[](PeerNumber n) noexcept { return numbers[static_cast<size_t>(n)]; }
  int64_t operator[](PeerNumber n) const noexcept { return numbers[static_cast<size_t>(n)]; }
};

/// An entry as it lies in the page.
struct PeerSlot {
  static constexpr size_t words = sizeof(PeerEntry) / sizeof(uint64_t);
  static_assert(sizeof(PeerEntry) % sizeof(uint64_t) == 0);

  std::atomic<uint64_t> sequence; ///< 0: free so far
  std::atomic<uint64_t> entry[words];
};

inline constexpr size_t kPeerEntries = 64;
inline constexpr size_t kOthers = kPeerEntries; ///< the entry of all that have none of their own
using PeerSlots = std::array<PeerSlot, kPeerEntries + 1>;

/// False: there is none, or it is being written just now.
bool read_peer(const PeerSlot& slot, PeerEntry& out) noexcept;

class PeerTable {
public:
  PeerTable() noexcept : slots_(&own_) {}
  PeerTable(const PeerTable&) = delete;
  PeerTable& operator=(const PeerTable&) = delete;

  /// Any thread; no system call.
  void write(size_t slot, const PeerEntry& entry) noexcept;

  /// Entries go to `page` from now on, and so do those there are. For the page.
  void move_to(PeerSlots& page) noexcept;
  /// In a fork child: an empty one, in memory of its own. Takes no lock.
  void in_child() noexcept;

  const PeerSlots& slots() const noexcept { return *slots_.load(std::memory_order_acquire); }

private:
  class Busy;

  PeerSlots own_{}; // while there is no page
  std::atomic<PeerSlots*> slots_;
  // Orders writers. Held for a copy of some bytes, never over a system call.
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

} // namespace adverb::observe
