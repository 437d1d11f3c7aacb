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
    return "it names no memory of the peer";
  if (!facts.connected)
    return "the queue pair is a datagram's";
  switch (facts.peer) {
  case Peer::unknown:
  case Peer::asking:
    return "nothing is known of the peer yet";
  case Peer::stock:
    return "the peer runs without adverb, so its keys are its device's";
  case Peer::lost:
    return "the link to the peer was lost a moment ago";
  case Peer::linked:
    break;
  }
  if (!is_atomic(facts.opcode) && facts.length == 0)
    return "it has no bytes, so no key is looked at";
  if (facts.key.kind == KeyVerdict::Kind::virtual_key)
    return "the peer has not pinned the region its key names";
  return facts.key.known() ? "the peer's key is its device's" : "the peer's key is not known yet";
}

} // namespace

std::string words(const Choice& choice, const Facts& facts) {
  std::string out;
  switch (choice.fit) {
  case Fit::yes:
    out = std::string(choice.row->name) + ": " + choice.row->words;
    break;
  case Fit::ask_peer:
    out = "the peer is asked whether it runs adverb";
    break;
  case Fit::ask_key:
    out = "the peer is asked what its key names";
    break;
  default:
    out = "it waits";
    break;
  }
  return out + "; " + reason(facts);
}

} // namespace adverb::steering
