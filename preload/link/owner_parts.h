// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What an Owner keeps of a link; for its own sources alone.
#pragma once

#include "link/companion.h"
#include "link/connection.h"
#include "link/peers.h"
#include "link/proof.h"
#include "link/slots.h"
#include "link/wire.h"
#include "service/service.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::link::owning {

struct Bound {
  uint64_t handle = 0; // of the queue pair of this process; 0: it is waited for
  ibv_device* device = nullptr;
  uint64_t wait = 0;
  wire::Bind bind{};                // as the peer asked for it
  std::optional<wire::Claim> claim; // came while it was waited for
  bool proven = false;
};

struct Channel {
  ibv_device* device; // requests for queue pairs of another would be served under a lock not theirs
  std::shared_ptr<Companion> end;
  wire::Companion asked;
  wire::CompanionAck answered;
  ibv_ah_attr path; // to the peer's host, of the queue pair that it was made for
};

// A queue pair that the peer is about to prove.
struct Claim {
  std::shared_ptr<Slots> slots;
  Slots::Slot slot;
  KeyPair pair;
  wire::Word word{};              // what the slot holds, if it is of atomics
  std::chrono::nanoseconds since; // of the World's clock
  uint64_t timer = 0;             // until it is over, or until the slot is looked at again
  int looks = 0;
};

struct Link {
  std::shared_ptr<Connection> connection;
  wire::Id peer{}; // its process
  std::shared_ptr<Peer> who;
  Peer::Now now;     // as `who` is to have it, unless
  bool noted = true; // it is to be looked at anew
  wire::Id peer_nonce{};
  wire::Id nonce{};
  wire::Id ticket{};
  std::shared_ptr<service::Party> party = std::make_shared<service::Party>(); // of its jobs
  bool trusted = false;                                                       // it may bind
  bool vouched = false; // what it has bound needs no proof
  bool opened = false;  // a companion of its
  bool proven = false;  // a queue pair of its
  bool away = false;    // its connection was lost
  uint64_t timer = 0;   // until trusted; then until it has been idle or away for long, if it is
  // By the peer's handle, in order: it chooses its handles, and could have all of them fall
  // together in a table of hashes.
  std::map<uint64_t, Bound> bound;
  std::map<uint64_t, Claim> claims; // the same
  int failed = 0;                   // of these, without a proof, within a second from:
  std::chrono::nanoseconds failed_since{};
  int too_early = 0;        // claims refused since then, as too many had come to nothing
  std::set<uint64_t> waits; // of binds and probes
  std::vector<Channel> channels;
  uint64_t frames = 0; // that it has sent beyond what it may a second, since it was new
  std::chrono::nanoseconds frames_since{};
  unsigned refused = 0; // companions, as it has more of them than others, since it has proven one
};

} // namespace adverb::link::owning
