// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a choice is made by: a snapshot of one request and of what is known of its peer.
#pragma once

#include "steering/key_verdict.h"

#include <cstdint>

#include <infiniband/verbs.h>

namespace adverb::steering {

// What is known of the peer's side of a connection. `lost`: its link went a moment ago.
enum class Peer : uint8_t { unknown, asking, stock, linked, lost };

struct Facts {
  ibv_wr_opcode opcode = IBV_WR_SEND;
  uint64_t length = 0;              // bytes
  uint64_t length_max = UINT64_MAX; // the device refuses what is longer
  bool signaled = false;            // it says by itself that it is done
  uint64_t remote_address = 0;      // one-sided requests
  bool connected = false;           // the queue pair carries one-sided requests (RC, UC)
  Peer peer = Peer::unknown;
  KeyVerdict key{};                // of the remote key, while the peer is linked
  bool leased = false;             // the bytes it names, by that right, under a virtual key
  bool viewed = false;             // the same of a READ, by a view
  bool steered_away = false;       // by policy or measurement the peer's CPU is to carry it
  bool beside_unload = false;      // one shortly before it is with the peer's CPU, as it had to be
  bool ahead = false;              // by policy its bytes are to go ahead of it, a SEND's
  bool proven = false;             // that the queue pair is the peer's other end; of such a one
  bool key_likely_virtual = false; // where nothing is known of it: the last one told of was
};

// What a way says to the facts.
enum class Fit : uint8_t { no, yes, ask_peer, ask_key, wait };

} // namespace adverb::steering
