// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How a queue pair of this process is proven to be its own, to a peer that proves the same of the
// other end (proof.h).
#include "link/proof.h"
#include "link/seeker.h"
#include "link/seeker_parts.h"
#include "link/slots.h"
#include "world/world.h"

#include <cassert>
#include <utility>
#include <vector>

namespace adverb::link {

using observe::Counter;
using wire::Answer;

void Seeker::claim(uint64_t handle, uint32_t key, std::function<void(const Offer&)> offered) {
  assert(world_.service.on_thread());
  claims_.erase(handle);
  const auto asked = bound_.find(handle);
  const auto searching = searches_.find(handle);
  if (asked == bound_.end() && searching == searches_.end())
    return; // its channel has ended
  auto claim = std::make_unique<Claim>();
  claim->key = key;
  claim->offered = std::move(offered);
  claims_[handle] = std::move(claim);
  // Else it goes when the bind does, or when that is answered.
  const auto link = asked == bound_.end() ? nullptr : asked->second.link.lock();
  if (link && (asked->second.remote_handle != 0 || !link->may_vouch))
    send_claim(link, handle);
}

void Seeker::send_claim(const std::shared_ptr<Link>& link, uint64_t handle) {
  const auto at = claims_.find(handle);
  if (at == claims_.end() || at->second->stage != Claim::Stage::waits)
    return;
  Claim& claim = *at->second;
  claim.link = link;
  claim.stage = Claim::Stage::asked;
  if (!link->away) // else it is tried anew when it is back
    link->connection->send(wire::frame(wire::Claim{handle, claim.key, 0}));
}

// Of a queue pair that is to be bound over another link, as the one it was asked over has ended.
void Seeker::renew(Claims::node_type claim) {
  Claim& its = *claim.mapped();
  switch (its.stage) {
  case Claim::Stage::waits:
  case Claim::Stage::asked:
  case Claim::Stage::held:
    its.stage = Claim::Stage::waits;
    its.link.reset();
    claims_.insert(std::move(claim));
    break;
  case Claim::Stage::offered: // prove() says that there is none
    break;
  case Claim::Stage::told:
    world_.service.run([done = std::move(its.done)] { done(Answer::not_there); });
    break;
  }
}

void Seeker::on_slot(const std::shared_ptr<Link>& link, const wire::Slot& slot) {
  const auto at = claims_.find(slot.handle);
  if (at == claims_.end() || at->second->link.lock() != link ||
      at->second->stage != Claim::Stage::asked)
    return; // nobody waits for it any more
  Claim& claim = *at->second;
  Offer offer;
  offer.answer = static_cast<Answer>(slot.answer);
  offer.kind = static_cast<SlotKind>(slot.kind);
  // No address of the peer's choice is ever written to.
  if (offer.answer == Answer::ok && (!is_remote(offer.kind) || slot.index >= slots_of_a_kind)) {
    world_.counters.count(Counter::malformed_messages);
    link->who->count(Peer::Number::malformed_messages);
    offer.answer = Answer::refused;
  }
  if (offer.answer != Answer::ok) {
    world_.log.debug("claim of {:x}: answer {}", slot.handle, slot.answer);
    const auto offered = std::move(claim.offered);
    claims_.erase(at);
    return offered(offer);
  }
  claim.pair = new_key_pair(world_.entropy);
  offer.rkey = slot.rkey;
  offer.address = slot_address(offer.kind, slot.index);
  if (offer.kind == SlotKind::write)
    offer.share = claim.pair.open;
  claim.slot = slot;
  claim.stage = Claim::Stage::held;
  claim.offer = offer;
  offer_if_safe(link, slot.handle);
}

// Who answers on the peer's host need not be the peer, and with a slot that is none has the queue
// pair fail. One who has nothing to do with the device there cannot open a companion. It costs the
// first path to a host a round trip: to who has been at the other end of one of our queue pairs
// there it does not apply.
void Seeker::offer_if_safe(const std::shared_ptr<Link>& link, uint64_t handle) {
  const auto at = claims_.find(handle);
  const auto asked = bound_.find(handle);
  if (at == claims_.end() || asked == bound_.end() || at->second->link.lock() != link ||
      at->second->stage != Claim::Stage::held)
    return;
  const auto path = link->paths.find(asked->second.path);
  if (!host_of(link->host).proven && (path == link->paths.end() || !path->second.up))
    return;
  at->second->stage = Claim::Stage::offered;
  const auto offered = std::move(at->second->offered);
  offered(at->second->offer);
}

void Seeker::offer_held(const std::shared_ptr<Link>& link) {
  std::vector<uint64_t> held;
  for (const auto& [handle, claim] : claims_)
    if (claim->stage == Claim::Stage::held)
      held.push_back(handle);
  for (const uint64_t handle : held)
    offer_if_safe(link, handle);
}

// False: the channel that its requests would go over is not there.
bool Seeker::fill(const Asked& asked, Claim& claim) {
  const auto link = claim.link.lock();
  const auto path = link->paths.find(asked.path);
  if (path == link->paths.end() || path->second.answered.qpn == 0)
    return false;
  Transcript& t = claim.transcript;
  t.initiator = process_;
  t.owner = link->peer;
  t.initiator_nonce = link->nonce;
  t.owner_nonce = link->owner_nonce;
  t.bind = asked.bind;
  t.bind.patience = 0;
  t.remote_handle = asked.remote_handle;
  t.slot_kind = claim.slot.kind;
  t.slot_rkey = claim.slot.rkey;
  t.slot_index = claim.slot.index;
  t.companion = path->second.asked;
  t.companion_ack = path->second.answered;
  if (!identity_)
    identity_ = new_key_pair(world_.entropy);
  t.identity = identity_->open;
  t.initiator_share = claim.pair.open;
  return true;
}

void Seeker::prove(uint64_t handle, const wire::Share& read,
                   std::function<void(wire::Answer)> done) {
  assert(world_.service.on_thread());
  const auto at = claims_.find(handle);
  const auto asked = bound_.find(handle);
  if (asked == bound_.end())
    return; // its channel has ended
  const auto link = asked->second.link.lock();
  if (at == claims_.end() || at->second->stage != Claim::Stage::offered || link->away ||
      !fill(asked->second, *at->second)) {
    claims_.erase(handle);
    return done(Answer::not_there);
  }
  Claim& claim = *at->second;
  const auto kind = static_cast<SlotKind>(claim.slot.kind);
  claim.transcript.owner_share = kind == SlotKind::read ? read : claim.slot.share;
  if (kind == SlotKind::atomic)
    std::copy_n(read.begin(), claim.transcript.word.size(), claim.transcript.word.begin());
  const auto proof =
      prove_as_initiator(claim.pair, *identity_, world_.policy().link().key, claim.transcript);
  if (!proof) {
    claims_.erase(at);
    return done(Answer::refused);
  }
  claim.stage = Claim::Stage::told;
  claim.done = std::move(done);
  wire::Prove prove{};
  prove.handle = handle;
  prove.companion_qpn = claim.transcript.companion.qpn;
  if (kind != SlotKind::write)
    prove.share = claim.pair.open;
  prove.identity = identity_->open;
  prove.mac = proof->initiator;
  claim.expected = proof->owner;
  link->connection->send(wire::frame(prove));
}

void Seeker::on_prove_ack(const std::shared_ptr<Link>& link, const wire::ProveAck& ack) {
  const auto at = claims_.find(ack.handle);
  if (at == claims_.end() || at->second->link.lock() != link ||
      at->second->stage != Claim::Stage::told)
    return;
  const auto claim = std::move(at->second);
  claims_.erase(at);
  auto answer = static_cast<Answer>(ack.answer);
  if (answer == Answer::ok && !equal(ack.mac, claim->expected)) {
    answer = Answer::refused;
    world_.counters.count(Counter::auth_failures);
    link->who->count(Peer::Number::auth_failures);
    if (world_.log.every("proof", 10))
      world_.log.warn("the process that answers for {} could not prove to be the other end of a "
                      "queue pair; nothing is sent there",
                      link->host);
  }
  if (answer == Answer::ok) {
    host_of(link->host).proven = true;
    if (const auto asked = bound_.find(ack.handle); asked != bound_.end())
      asked->second.proven = true;
  }
  claim->done(answer);
}

// What was said over the connection that was lost may not have been heard.
void Seeker::try_anew(const std::shared_ptr<Link>& link) {
  std::vector<std::unique_ptr<Claim>> again;
  for (auto at = claims_.begin(); at != claims_.end();) {
    if (at->second->link.lock() == link && at->second->stage != Claim::Stage::offered) {
      again.push_back(std::move(at->second));
      at = claims_.erase(at);
    } else {
      ++at;
    }
  }
  for (const auto& claim : again) {
    if (claim->stage != Claim::Stage::told)
      claim->offered({Answer::not_there});
    else
      claim->done(Answer::not_there);
  }
}

} // namespace adverb::link
