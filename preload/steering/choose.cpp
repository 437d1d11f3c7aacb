// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "steering/choose.h"

namespace adverb::steering {

Choice choose_among(const Facts& facts, WayTable ways) noexcept {
  const size_t device = ways.size() - 1;
  for (size_t i = 0; i < device; ++i)
    if (const Fit fit = ways[i]->functions.fits(facts); fit != Fit::no)
      return {fit, ways[i], i};
  return {Fit::yes, ways[device], device};
}

namespace {

std::string reason(const Facts& facts) {
  if (!is_one_sided(facts.opcode))
    return "the request names no memory of the peer";
  if (!facts.connected)
    return "a datagram queue pair carries no such request";
  switch (facts.peer) {
  case Peer::unknown:
  case Peer::asking:
    return "nothing is known of the peer yet";
  case Peer::stock:
    return "the peer runs without adverb, so its keys are those of its device";
  case Peer::lost:
    return "the link to the peer was lost a moment ago";
  case Peer::linked:
    break;
  }
  if (!is_atomic(facts.opcode) && facts.length == 0)
    return "the request has no bytes, so no key is checked";
  if (facts.steered_away)
    return "the policy steers it to the owner's CPU, which serves the key";
  if (facts.key.kind == KeyVerdict::Kind::virtual_key)
    return "the owner has not pinned the region that the key names";
  return facts.key.known() ? "the key is one of the peer's device" : "the key is not known yet";
}

} // namespace

std::string words(const Choice& choice, const Facts& facts) {
  std::string out;
  switch (choice.fit) {
  case Fit::yes:
    out = std::string(choice.row->name) + " (" + choice.row->words + ")";
    break;
  case Fit::ask_peer:
    out = "waits until the peer has said whether it runs adverb";
    break;
  case Fit::ask_key:
    out = "waits until the peer has said what the key names";
    break;
  default:
    out = "waits";
    break;
  }
  return out + ": " + reason(facts);
}

} // namespace adverb::steering
