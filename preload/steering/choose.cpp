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

Reason reason_of(const Facts& facts) noexcept {
  if (!is_one_sided(facts.opcode) && !facts.ahead)
    return Reason::names_nothing;
  if (!facts.connected)
    return Reason::datagram;
  switch (facts.peer) {
  case Peer::unknown:
  case Peer::asking:
    return Reason::peer_unknown;
  case Peer::stock:
    return Reason::peer_stock;
  case Peer::lost:
    return Reason::peer_lost;
  case Peer::linked:
    break;
  }
  if (facts.ahead)
    return Reason::ahead;
  if (!is_atomic(facts.opcode) && facts.length == 0)
    return Reason::no_bytes;
  if (facts.steered_away)
    return Reason::steered_away;
  if (facts.key.kind == KeyVerdict::Kind::virtual_key)
    return Reason::virtual_key;
  return facts.key.known() ? Reason::real_key : Reason::key_unknown;
}

const char* words(Reason reason) noexcept {
  switch (reason) {
  case Reason::names_nothing:
    return "the request names no memory of the peer";
  case Reason::datagram:
    return "a datagram queue pair carries no such request";
  case Reason::peer_unknown:
    return "nothing is known of the peer yet";
  case Reason::peer_stock:
    return "the peer runs without adverb, so its keys are those of its device";
  case Reason::peer_lost:
    return "the link to the peer was lost a moment ago";
  case Reason::no_bytes:
    return "the request has no bytes, so no key is checked";
  case Reason::steered_away:
    return "the policy steers it to the owner's CPU, which serves the key";
  case Reason::virtual_key:
    return "the owner has not pinned the region that the key names";
  case Reason::real_key:
    return "the key is one of the peer's device";
  case Reason::key_unknown:
    return "the key is not known yet";
  case Reason::in_vain:
    return "a request to the peer was sent in vain, so the NIC judges this one";
  case Reason::ahead:
    return "the policy has losses made good in software, and the message is a long one";
  }
  return "";
}

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
  return out + ": " + words(reason_of(facts));
}

} // namespace adverb::steering
