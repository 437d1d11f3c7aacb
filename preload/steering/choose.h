// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which way a work request takes: a pure function of a snapshot of facts and the table of ways.
#pragma once

#include "steering/facts.h"
#include "steering/opcode.h"
#include "steering/way.h"

#include <string>

namespace adverb::steering {

// A way (fit `yes`), or what has to be known or to happen first.
struct Choice {
  Fit fit = Fit::no;
  const WayRow* row = nullptr; // who fits, or who asks
  size_t index = 0;            // of the row in the table
};

// What is left when there is something to choose by.
Choice choose_among(const Facts& facts, WayTable ways) noexcept;

inline Choice choose(const Facts& facts, WayTable ways) noexcept {
  // Nothing of the peer's is named, nobody is there to talk to, or the key is the device's own.
  if (!facts.connected || (!is_one_sided(facts.opcode) && !facts.ahead) ||
      facts.peer == Peer::stock ||
      (facts.peer == Peer::linked && facts.key.kind == KeyVerdict::Kind::real &&
       !facts.steered_away))
    return {Fit::yes, ways.back(), ways.size() - 1};
  return choose_among(facts, ways);
}

// Why. `adverb trace` has their numbers from the shared page.
enum class Reason : uint8_t {
  names_nothing, // of the peer's memory
  datagram,
  peer_unknown,
  peer_stock,
  peer_lost,
  no_bytes,
  steered_away,
  virtual_key,
  real_key,
  key_unknown,
  in_vain, // another request was sent in vain, so the device judges
  ahead,   // the policy has losses made good, and it is long
};
Reason reason_of(const Facts& facts) noexcept;
// For people: "the owner has ..."; of a number that is none, "".
const char* words(Reason reason) noexcept;

// The choice and why, for people: "unload (requests that the owner's CPU carries): the owner has
// ...".
std::string words(const Choice& choice, const Facts& facts);

} // namespace adverb::steering
