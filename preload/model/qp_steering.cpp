// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How a queue pair has its requests to pinned regions steered: by the rules of the policy in force,
// under keys that the peer's CPU serves (steering/steer.h).
#include "model/qp.h"
#include "policy/rule.h"
#include "world/world.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace adverb::model {

using steering::Peer;

// Whether the peer's CPU is to carry a request to a key of the peer's own. What has to be known or
// proven for that is asked meanwhile, and the device carries what comes before the answer.
bool Qp::steers_away(const steering::Request& r, const steering::KeyVerdict& key) {
  if (steer_ == nullptr || serves_none_ || state_ != IBV_QPS_RTS ||
      key.kind != steering::KeyVerdict::Kind::real || key.served == steering::KeyVerdict::none ||
      r.length > length_max_ ||
      steer_->by_device(r.wr.opcode, steering::remote_address(r.wr), r.length))
    return false;
  if (!prover_.is_proven())
    prove_to_steer(r);
  else if (key.served == steering::KeyVerdict::not_asked)
    messages_.ask_key(steering::remote_key(r.wr));
  if (!prover_.is_proven() || !key.is_served())
    return false;
  const uint64_t address = steering::remote_address(r.wr);
  if (const auto* const rule = steer_->rule_of(r.wr.opcode, address, r.length))
    world().policy().steered_by(*rule);
  steer_->count_unloaded(address, r.length);
  return true;
}

// Over a far link a request waits until the peer's CPU may carry it. The device would be busy for
// long with what it is given meanwhile, and the proof would go behind that.
bool Qp::waits_to_be_steered(const steering::Request& r,
                             const steering::Facts& facts) const noexcept {
  return by_packets_ && steer_ != nullptr && !serves_none_ && !facts.steered_away &&
         state_ == IBV_QPS_RTS && !steering::is_atomic(r.wr.opcode) && r.length != 0 &&
         r.length <= length_max_ && facts.key.kind == steering::KeyVerdict::Kind::real &&
         facts.key.served != steering::KeyVerdict::none &&
         (!prover_.is_proven() || facts.key.served == steering::KeyVerdict::not_asked) &&
         !steer_->by_device(r.wr.opcode, steering::remote_address(r.wr), r.length);
}

// A request to a real key never fails for want of what steering takes.
void Qp::prove_to_steer(const steering::Request& r) noexcept {
  try {
    prover_.prove(r, link::any_key);
  } catch (const std::bad_alloc&) {
    serves_none_ = true;
    world().counters.count(observe::Counter::exceptions_caught);
  }
}

// The peer is known.
void Qp::begin_steering() noexcept {
  in6_addr address{};
  memcpy(&address, attr_.ah_attr.grh.dgid.raw, sizeof address);
  serves_none_ = false;
  passthrough_.steer_by(nullptr);
  steer_.reset();
  if (messages_.lossy()) // one without an answer could be carried out twice
    return;
  try {
    auto rules = world().policy().steering(
        {context_->device(), type_, attr_.ah_attr.is_global != 0 ? &address : nullptr},
        by_packets_);
    // What the NIC carries behind a SEND would not wait until the peer has put its bytes in place.
    if (std::ranges::any_of(rules,
                            [](const auto& rule) { return rule.steer != policy::Steer::unload; }))
      may_go_ahead_ = false;
    if (rules.empty())
      return;
    steer_ = std::make_unique<steering::Steer>(std::move(rules), world().clock,
                                               static_cast<uint32_t>(ring_.capacity()),
                                               &world().trace, qpn_);
    passthrough_.steer_by(steer_.get());
  } catch (const std::bad_alloc&) { // the device carries all
    world().counters.count(observe::Counter::exceptions_caught);
  }
}

// The path is known. What the policy says then holds for as long as the queue pair is connected.
void Qp::look_at_reliability() noexcept {
  in6_addr address{};
  memcpy(&address, attr_.ah_attr.grh.dgid.raw, sizeof address);
  const policy::QpQuery query{context_->device(), type_,
                              attr_.ah_attr.is_global != 0 ? &address : nullptr};
  using policy::Reliability;
  const Reliability chosen =
      may_link_ ? world().policy().ask<&policy::Rule::reliability>(query) : Reliability::device;
  by_measure_ = chosen == Reliability::automatic && type_ == IBV_QPT_RC;
  by_packets_ = chosen == Reliability::software;
  may_go_ahead_ = by_packets_ && type_ == IBV_QPT_RC;
  choose_sends();
}

// SENDs are passthrough unless some may go ahead. None do by measurement: were packets to pay no
// more, the device would carry a request behind one before the peer has put its bytes in place.
void Qp::choose_sends() noexcept {
  passthrough_.let_sends_pass(!may_go_ahead_ || peer_ == Peer::stock);
}

// A SEND that is no longer than a few packets gains nothing: it is there half a round trip after it
// was posted, and later if its bytes go ahead. Behind one whose bytes do it goes the same way, as
// the device would have to be waited for. And one without bytes must not be taken, at the peer, for
// one whose bytes came and that was not sent after all.
bool Qp::goes_ahead(const steering::Request& r) const noexcept {
  constexpr uint64_t few = 4;
  if ((r.wr.opcode != IBV_WR_SEND && r.wr.opcode != IBV_WR_SEND_WITH_IMM) || type_ != IBV_QPT_RC ||
      (r.wr.send_flags & IBV_SEND_FENCE) != 0 || serves_none_ || r.length > length_max_)
    return false;
  const uint64_t packet = uint64_t{128} << attr_.path_mtu;
  const bool joined = peer_ == Peer::linked && messages_.joined();
  if (joined && !messages_.takes_ahead())
    return false;
  return r.length > few * packet || (joined && (messages_.sends_ahead() != 0 ||
                                                (r.length == 0 && messages_.has_sent_ahead())));
}

// Where SENDs go ahead all goes by the peer's CPU, and stays so while the link does.
void Qp::steer_anew() {
  const std::lock_guard hold(lock_);
  if (peer_ != Peer::linked || may_go_ahead_)
    return; // it asks when it is
  begin_steering();
  send_.forget_key();
}

} // namespace adverb::model
