// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How a peer proves that a queue pair it has bound is its own: by using it (proof.h).
#include "link/bounds.h"
#include "link/identity.h"
#include "link/owner.h"
#include "link/owner_parts.h"
#include "link/proof.h"
#include "world/world.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace adverb::link {

using observe::Counter;
using Number = Peer::Number;
using wire::Answer;

namespace {

// What the program has posted before the proof may take its time, and others may want the slot.
constexpr std::chrono::seconds claim_due{30};
// The peer's device says that it has written before it is to be seen here, on some, or where the
// message was lost (UC).
constexpr std::chrono::milliseconds look_again{5};
constexpr int looks_max = 20;
constexpr int openings_max = 200; // looks, while the companion it names may be about to open
// Who has so many that come to nothing within a second has to wait for the next one.
constexpr int failed_max = 8;
constexpr std::chrono::seconds failed_within{1};
// And who asks all the same is not listened to for the rest of it: each answer takes time from all
// other peers'.
constexpr int too_early_max = 64;

bool is_empty(const wire::Share& share) {
  return share == wire::Share{};
}

// fe80::/10, which is another host on each link, and VLANs of a port are links with GIDs of their
// own.
bool is_link_local(const ibv_gid& gid) {
  return gid.raw[0] == 0xFE && (gid.raw[1] & 0xC0) == 0x80;
}

bool lead_to_one_host(const ibv_ah_attr& a, const ibv_ah_attr& b) {
  if (a.port_num != b.port_num || a.is_global != b.is_global)
    return false;
  if (a.is_global == 0)
    return a.dlid == b.dlid;
  return id_of(a.grh.dgid) == id_of(b.grh.dgid) &&
         (!is_link_local(a.grh.dgid) || a.grh.sgid_index == b.grh.sgid_index);
}

} // namespace

void Owner::on_claim(const std::shared_ptr<Link>& link, const wire::Claim& claim) {
  if (const auto bound = link->bound.find(claim.handle);
      bound != link->bound.end() && bound->second.wait != 0) {
    bound->second.claim = claim; // answered with its bind
    return;
  }
  wire::Slot slot{};
  slot.handle = claim.handle;
  const Answer answer = make_claim(link, claim, slot);
  if (answer == Answer::no_such_qp)
    heard(link, bounds::frames_for_vain);
  slot.answer = static_cast<uint32_t>(answer);
  link->connection->send(wire::frame(slot));
}

Answer Owner::make_claim(const std::shared_ptr<Link>& link, const wire::Claim& asked,
                         wire::Slot& slot) {
  const uint64_t peers = asked.handle;
  give_up(link, peers);
  const auto bound = link->bound.find(peers);
  LocalQp qp;
  if (bound == link->bound.end() || !directory_.find(bound->second.handle, qp) || !qp.connected)
    return Answer::no_such_qp;
  // Who asks of too many keys that do not exist is told nothing of any for a while.
  if (qp.is_virtual && link->who->misses.wait(world_.clock.now(), false).count() != 0) {
    link->who->count(Number::bound_key_misses);
    return Answer::not_there;
  }
  if (qp.is_virtual && !qp.is_virtual(asked.key)) {
    if (qp.exists && !qp.exists(asked.key)) {
      link->who->misses.wait(world_.clock.now(), true);
      link->who->count(Number::key_misses);
      world_.counters.count(Counter::key_misses);
    }
    return Answer::real_key;
  }
  const auto left = link->failed_since + failed_within - world_.clock.now();
  const bool early = link->failed >= failed_max && left.count() > 0;
  if (early && ++link->too_early >= too_early_max)
    link->connection->rest(left);
  if (early || link->claims.size() >= bounds::claims_of_link) {
    link->who->count(Number::bound_slots);
    return Answer::not_there;
  }
  const SlotKind kind = slot_kind_for(qp.access, qp.responder_resources);
  if (kind == SlotKind::none)
    return Answer::refused; // what it lets its peer do leaves no way to prove anything
  const auto slots = qp.slots.lock();
  if (!slots)
    return Answer::no_such_qp;
  Slots::Slot taken;
  int rc = slots->take(kind, taken);
  if (rc == EAGAIN && make_room(*slots, kind))
    rc = slots->take(kind, taken);
  if (rc != 0)
    return rc == EAGAIN ? Answer::not_there : Answer::no_resources;
  owning::Claim claim{slots, taken, new_key_pair(world_.entropy), {}, world_.clock.now()};
  slot.kind = static_cast<uint32_t>(kind);
  slot.index = taken.index;
  slot.rkey = taken.rkey;
  if (kind == SlotKind::read)
    slots->put(taken, claim.pair.open);
  else
    slot.share = claim.pair.open;
  if (kind == SlotKind::atomic) {
    world_.entropy.fill(claim.word.data(), claim.word.size());
    wire::Share shown{};
    std::ranges::copy(claim.word, shown.begin());
    slots->put(taken, shown);
  }
  claim.timer = world_.service.after(claim_due, [this, weak = std::weak_ptr(link), peers] {
    if (const auto l = weak.lock())
      give_up(l, peers);
  });
  link->claims.emplace(peers, std::move(claim));
  return Answer::ok;
}

// Who has most of the slots loses the oldest of its.
bool Owner::make_room(const Slots& slots, SlotKind kind) {
  std::shared_ptr<Link> greedy;
  size_t most = 0;
  std::pair<std::chrono::nanoseconds, uint64_t> oldest;
  for (const auto& link : links_) {
    size_t its = 0;
    std::pair<std::chrono::nanoseconds, uint64_t> first{std::chrono::nanoseconds::max(), 0};
    for (const auto& [peers, claim] : link->claims) {
      if (claim.slots.get() != &slots || claim.slot.kind != kind)
        continue;
      ++its;
      first = std::min(first, {claim.since, peers});
    }
    if (its > most || (its != 0 && its == most && first < oldest)) {
      most = its;
      oldest = first;
      greedy = link;
    }
  }
  if (greedy)
    give_up(greedy, oldest.second);
  return greedy != nullptr;
}

void Owner::give_up(const std::shared_ptr<Link>& link, uint64_t peers, bool proven) {
  const auto at = link->claims.find(peers);
  if (at == link->claims.end())
    return;
  world_.service.cancel(at->second.timer);
  at->second.slots->give(at->second.slot);
  link->claims.erase(at);
  if (proven)
    return;
  if (const auto now = world_.clock.now(); now - link->failed_since >= failed_within) {
    link->failed_since = now;
    link->failed = 0;
    link->too_early = 0;
  }
  ++link->failed;
}

void Owner::on_prove(const std::shared_ptr<Link>& link, const wire::Prove& prove) {
  wire::ProveAck ack{};
  ack.handle = prove.handle;
  const Answer answer = judge(link, prove, ack.mac);
  const auto claim = link->claims.find(prove.handle);
  const bool opens = std::ranges::any_of(link->channels, [&](const auto& c) {
    return c.asked.qpn == prove.companion_qpn && !c.end->down() && !c.end->is_open();
  });
  if (answer == Answer::not_there && claim != link->claims.end() &&
      claim->second.looks++ < (opens ? openings_max : looks_max)) {
    world_.service.cancel(claim->second.timer);
    claim->second.timer =
        world_.service.after(look_again, [this, weak = std::weak_ptr(link), prove] {
          if (const auto l = weak.lock())
            on_prove(l, prove);
        });
    return;
  }
  const bool wrong = claim != link->claims.end() && claim->second.slot.kind == SlotKind::write &&
                     !is_empty(claim->second.slots->look(claim->second.slot));
  give_up(link, prove.handle, answer == Answer::ok);
  if (answer == Answer::refused || (answer == Answer::not_there && wrong)) {
    world_.counters.count(Counter::auth_failures);
    link->who->count(Number::auth_failures);
    if (world_.log.every("proof", 10))
      world_.log.warn("a peer could not prove that a queue pair it speaks for is its own; refused");
  } else if (answer == Answer::ok) {
    world_.counters.count(Counter::qps_proven);
    link->bound.at(prove.handle).proven = true;
    const auto channel = std::ranges::find_if(link->channels, [&](const auto& c) {
      return c.asked.qpn == prove.companion_qpn && !c.end->down();
    });
    is_proven(link, channel == link->channels.end() ? nullptr : channel->end,
              link->bound.at(prove.handle).handle);
    note(link);
  }
  ack.answer = static_cast<uint32_t>(answer);
  link->connection->send(wire::frame(ack));
}

Answer Owner::judge(const std::shared_ptr<Link>& link, const wire::Prove& prove, wire::Mac& mac) {
  const auto bound = link->bound.find(prove.handle);
  const auto claim = link->claims.find(prove.handle);
  LocalQp qp;
  if (bound == link->bound.end() || claim == link->claims.end() ||
      !directory_.find(bound->second.handle, qp) || !qp.connected)
    return Answer::not_there;
  const auto channel = std::ranges::find_if(link->channels, [&](const auto& c) {
    return c.device == qp.device && c.asked.qpn == prove.companion_qpn && !c.end->down();
  });
  // One that nobody has opened says nothing of where who names it is: it leads where he said.
  if (channel == link->channels.end() || !channel->end->is_open())
    return Answer::not_there;
  const owning::Claim& its = claim->second;
  Transcript transcript{};
  transcript.initiator = link->peer;
  transcript.owner = process_;
  transcript.initiator_nonce = link->peer_nonce;
  transcript.owner_nonce = link->nonce;
  transcript.bind = bound->second.bind;
  transcript.bind.patience = 0;
  transcript.remote_handle = qp.handle;
  transcript.slot_kind = static_cast<uint32_t>(its.slot.kind);
  transcript.slot_rkey = its.slot.rkey;
  transcript.slot_index = its.slot.index;
  transcript.companion = channel->asked;
  transcript.companion_ack = channel->answered;
  transcript.identity = prove.identity;
  transcript.owner_share = its.pair.open;
  transcript.word = its.word;
  const bool written = its.slot.kind == SlotKind::write;
  transcript.initiator_share = written ? its.slots->look(its.slot) : prove.share;
  const auto proof = prove_as_owner(its.pair, world_.policy().link().key, transcript);
  // A slot that is written another queue pair of the domain could write, too, or one before it that
  // is late: no reason to refuse who has it now.
  if (!proof || !equal(proof->initiator, prove.mac))
    return written ? Answer::not_there : Answer::refused;
  // Who is at the other end of that companion is where it leads. A client of the same domain on
  // another host could use the slot, too, but this queue pair's peer is not there.
  if (!lead_to_one_host(channel->path, qp.ah))
    return Answer::refused;
  if (!link->vouched) {
    // The same process, as far as it says, may have lost its connection, which is not missed here
    // yet: it is to come again.
    if (const auto other = vouched_elsewhere(link, qp.handle))
      return other->peer == link->peer ? Answer::not_there : Answer::refused;
    if (!holders_.prove(qp.handle, prove.identity,
                        [this](uint64_t handle) { return exists(handle); }))
      return Answer::refused;
  }
  channel->end->prove(qp.handle, prove.handle);
  mac = proof->owner;
  return Answer::ok;
}

bool Owner::exists(uint64_t handle) const {
  LocalQp qp;
  return directory_.find(handle, qp);
}

// By a process whose connection stands: what it has bound nobody else proves. One that is away
// may be the one who proves, over a connection of which the kernel does not say whose it is.
std::shared_ptr<Owner::Link> Owner::vouched_elsewhere(const std::shared_ptr<Link>& link,
                                                      uint64_t handle) const {
  const auto other = holders_.voucher(handle);
  const bool is =
      other && other != link && other->vouched && !other->away && links_.contains(other) &&
      std::ranges::any_of(other->bound,
                          [&](const auto& entry) { return entry.second.handle == handle; });
  return is ? other : nullptr;
}

} // namespace adverb::link
