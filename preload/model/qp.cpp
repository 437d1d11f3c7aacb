// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Its beginning and end, its peer, and what the transfer room asks of it. States: qp_state.cpp,
// posts: qp_post.cpp, completions: qp_completion.cpp.
#include "model/qp.h"
#include "model/srq.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "policy/rule.h"
#include "provider/real.h"
#include "steering/opcode.h"
#include "transfer/protocol.h"
#include "ways/table.h"
#include "world/world.h"

#include <algorithm>
#include <chrono>
#include <new>

namespace adverb::model {

using steering::Peer;

namespace {

// What the link carried is given to the device only after a while: the kernel of a peer that was
// killed closes its sockets before its queue pairs, and one that is still there would answer with a
// NAK for the reserved key where stock programs see the peer vanish.
constexpr std::chrono::milliseconds bereavement{500};

// How long what was lent over a link outlives that: longer than a device repeats a request.
constexpr std::chrono::seconds lent_at_most{60};

// So many requests on leased bytes, after the last one that had to be carried by the peer's CPU,
// may go along with it (facts.h, beside_unload).
constexpr uint64_t along_run = 32;

// Handles name a queue pair to its peer and are a capability too: who does not know one cannot
// address the queue pair, so they are drawn at random.
uint64_t new_handle(World& world) {
  uint64_t handle = 0;
  while (handle == 0)
    world.entropy.fill(&handle, sizeof handle);
  return handle;
}

// Numbers of requests and receives differ from those of every queue pair before, as completions of
// one that is gone may still come, and its number be another's by then.
constexpr unsigned numbers_shift = 40;
constexpr uint64_t numbers_mask = (uint64_t{1} << 20) - 1;

uint64_t first_number(Context& context) {
  return number_bit | (context.next_queue() & numbers_mask) << numbers_shift;
}

steering::Order order(World& world, std::string_view device, ibv_qp_type type) {
  return world.policy().ask<&policy::Rule::order>({device, type}) == policy::Order::relaxed
             ? steering::Order::relaxed
             : steering::Order::strict;
}

} // namespace

World& Qp::world() const noexcept {
  return context_->world();
}

Qp::Qp(Parts parts, ibv_qp* qp, ibv_qp_type type, const ibv_qp_cap& cap, bool all_signaled,
       uint32_t extra_send)
    : CqUser(passthrough_, type == IBV_QPT_RAW_PACKET), context_(std::move(parts.context)),
      pd_(std::move(parts.pd)), send_cq_(std::move(parts.send_cq)),
      recv_cq_(std::move(parts.recv_cq)), srq_(std::move(parts.srq)), qp_(qp), type_(type),
      qpn_(qp->qp_num), extra_send_(extra_send), first_number_(first_number(*context_)),
      post_send_(world().provider.ops(qp->context).post_send),
      ring_(cap, all_signaled, first_number_, connected()),
      elements_(world(), context_->regions(), pd_->staging, pd_->verbs, context_->copy_below(),
                ring_),
      passthrough_({world(), *this, context_->regions(), elements_, pd_->staging, pd_->verbs,
                    context_->copy_below(), post_send_, qp,
                    all_signaled ? unsigned{IBV_SEND_SIGNALED} : 0U, ways::table().back()->carried,
                    connected() ? ring_.capacity() : UINT64_MAX, ring_.sges(),
                    context_->posts_by_system_call()}),
      device_(*this, ring_, passthrough_), messages_(world(), ring_, type == IBV_QPT_UC),
      send_({world(),
             *this,
             ring_,
             elements_,
             device_,
             passthrough_,
             {&messages_},
             messages_,
             ways::table(),
             order(world(), context_->device(), type)}),
      prover_(world(), *this, device_, *pd_->slots, type != IBV_QPT_UC) {
  if (!srq_)
    receive_ = std::make_unique<ReceiveQueue>(*context_, pd_->verbs, pd_->staging, cap.max_recv_wr,
                                              cap.max_recv_sge);
  const policy::QpQuery query{context_->device(), type};
  may_link_ =
      connected() && world().policy().ask<&policy::Rule::peers>(query) == policy::Peers::automatic;
  handle_ = new_handle(world());
  send_cq_->attach(qpn_, this);
  if (recv_cq_ != send_cq_)
    recv_cq_->attach(qpn_, this);
}

Qp::~Qp() = default;

void Qp::incarnate() {
  handle_ = new_handle(world());
}

void Qp::announce() {
  if (!may_link_)
    return;
  context_->use_device();
  world().targets().add(handle_, this);
  world().links().publish(local());
}

// Takes the present incarnation away from replies: when this returns, none of them runs. Peers are
// answered by end_target().
void Qp::part_from_peer() {
  std::shared_ptr<transfer::Initiator> initiator;
  const uint64_t handle = handle_;
  {
    const std::lock_guard hold(lock_);
    initiator = messages_.leave();
    peer_ = Peer::unknown;
    prover_.reset(false);
    way_trace_.clear();
    send_.stop();
  }
  if (may_link_)
    world().links().cancel_bind(handle);
  if (initiator)
    initiator->detach(handle);
  context_->barrier({.target = handle_});
}

// Takes it away from peers, whose requests are refused from here on, and what they were lent. The
// device has no queue pair by then that would answer for it: who asked before and was told that
// there is none would have his request refused by it, which a stock peer's would not be.
void Qp::end_target() {
  if (may_link_) {
    const auto without = [&](auto&& tell) { // the queue pair ends all the same
      try {
        tell();
      } catch (const std::bad_alloc&) {
        world().counters.count(observe::Counter::exceptions_caught);
      }
    };
    without([&] { world().links().withdraw(qpn_, handle_); });
    world().targets().remove(handle_);
    without([&] { world().links().unbind(handle_); });
  }
  context_->barrier({.target = handle_});
  end_leases();
  leaving_ = false;
}

// What peers were lent through it they have no more.
void Qp::end_leases() {
  link::Progress* const links = context_->links();
  if (links == nullptr)
    return; // there was never one
  const std::lock_guard progress(links->lock());
  end_lent();
}

void Qp::end_lent() noexcept {
  end_bindings();
  for (const auto& grants : orphans_)
    revoke(*grants);
  orphans_.clear();
}

// In ERR it neither asks nor is asked for anything more, till it is reset. Later, as the caller may
// hold any lock.
void Qp::end_rights() noexcept {
  if (!may_link_)
    return;
  try {
    world().service.run([weak = weak_from_this(), handle = handle_] {
      const auto self = weak.lock();
      if (!self)
        return;
      self->world().links().unbind(handle);
      link::Progress* const links = self->context_->links();
      if (links == nullptr)
        return;
      const std::lock_guard progress(links->lock());
      if (self->world().targets().find(handle) == self.get())
        self->end_lent();
    });
  } catch (const std::bad_alloc&) { // it is done when it is reset or destroyed
    world().counters.count(observe::Counter::exceptions_caught);
  }
}

void Qp::close() {
  stop_and_await_answers();
  leaving_ = true;
  part_from_peer();
  before_close_ = state_.exchange(IBV_QPS_RESET);
  send_cq_->settle();
  if (recv_cq_ != send_cq_)
    recv_cq_->settle();
}

void Qp::reopen() {
  end_target();
  state_ = before_close_;
  const std::lock_guard hold(lock_);
  send_.resume();
}

void Qp::forget() {
  // The provider's queue pair is gone: no completion of it comes any more but those it has left.
  send_cq_->detach(qpn_, this);
  recv_cq_->detach(qpn_, this);
  end_target();
  const std::lock_guard hold(lock_);
  send_.clear();
  if (receive_)
    receive_->clear();
}

link::LocalQp Qp::local() const {
  link::LocalQp l{};
  l.device = qp_->context->device;
  l.qpn = qpn_;
  l.handle = handle_;
  l.type = static_cast<uint8_t>(type_);
  l.slots = pd_->slots;
  l.is_virtual = [weak = weak_from_this()](uint32_t key) {
    const auto self = weak.lock();
    if (self && key == link::any_key)
      return self->world().policy().serves();
    return !self || self->context_->regions().is_virtual_to_peer(self->pd(), key);
  };
  l.exists = [weak = weak_from_this()](uint32_t key) {
    const auto self = weak.lock();
    return !self || key == link::any_key || self->context_->regions().exists(self->pd(), key);
  };
  const ibv_qp_state state = state_;
  l.connected = state != IBV_QPS_RESET && state != IBV_QPS_INIT;
  if (l.connected) {
    l.dest_qpn = attr_.dest_qp_num;
    l.ah = attr_.ah_attr;
    l.mtu = attr_.path_mtu;
    l.rq_psn = attr_.rq_psn;
    l.pkey_index = attr_.pkey_index;
    l.timeout = attr_.timeout;
    l.retry_cnt = attr_.retry_cnt;
    l.access = access_;
    l.responder_resources = responder_resources_;
    const provider::Inside inside;
    world().provider.real().ibv_query_gid(qp_->context, attr_.ah_attr.port_num,
                                          attr_.ah_attr.grh.sgid_index, &l.sgid);
  }
  return l;
}

void Qp::expect_immediate(uint64_t n, uint32_t bytes) {
  receipts_.expect({.number = n, .bytes = bytes});
}

transfer::Status Qp::take_ahead(const transfer::RequestHeader& request,
                                std::span<const std::byte> bytes) {
  const ibv_qp_state state = state_;
  if (type_ != IBV_QPT_RC || state < IBV_QPS_RTR || state > IBV_QPS_SQE ||
      !(srq_ ? srq_->takes_ahead() : receive_->takes_ahead()))
    return transfer::Status::refused;
  const transfer::Status status = receipts_.keep_ahead(request, bytes, world().budgets());
  if (status == transfer::Status::ok && (request.flags & transfer::last_part) != 0)
    recv_cq_->request_drain_in_time();
  return status;
}

// The device may have an atomic under way yet.
void Qp::lent_over_lost_link(transfer::Grants grants) {
  const auto& kept = orphans_.emplace_back(std::make_shared<transfer::Grants>(std::move(grants)));
  world().service.after(lent_at_most, [weak = weak_from_this(), orphan = std::weak_ptr(kept)] {
    const auto self = weak.lock();
    link::Progress* const links = self ? self->context_->links() : nullptr;
    if (links == nullptr)
      return;
    const std::lock_guard progress(links->lock());
    if (const auto grants = orphan.lock()) { // or the queue pair has ended them
      self->revoke(*grants);
      std::erase(self->orphans_, grants);
    }
  });
}

bool Qp::allows(transfer::Right right) const {
  const ibv_qp_state state = state_;
  if (state < IBV_QPS_RTR || state > IBV_QPS_SQE)
    return false;
  const unsigned access = access_;
  switch (right) {
  case transfer::Right::write:
    return (access & IBV_ACCESS_REMOTE_WRITE) != 0;
  // A device without resources for them refuses READs and atomics.
  case transfer::Right::read:
    return (access & IBV_ACCESS_REMOTE_READ) != 0 && responder_resources_ != 0;
  default:
    return (access & IBV_ACCESS_REMOTE_ATOMIC) != 0 && responder_resources_ != 0;
  }
}

void Qp::on_replies(std::span<const std::byte> replies) {
  const std::lock_guard hold(lock_);
  if (peer_ != Peer::linked)
    return;
  bool is_short = false;
  while (const auto reply = transfer::next_reply(replies)) {
    is_short = is_short || (reply->header.flags & transfer::short_of_cpu) != 0;
    messages_.on_reply(reply->header, reply->payload);
  }
  if (is_short && steer_ != nullptr && steer_->spare_cpu())
    world().counters.count(observe::Counter::peers_spared);
  send_.turn();
  if (!messages_.busy())
    unloaded_.notify_all();
}

void Qp::on_credit() {
  const std::lock_guard hold(lock_);
  if (peer_ == Peer::linked)
    send_.turn();
}

void Qp::on_keys_ended(std::span<const uint32_t> keys) {
  const std::lock_guard hold(lock_);
  if (peer_ == Peer::linked)
    send_.on_keys_ended(keys);
}

void Qp::on_recall() {
  const std::lock_guard hold(lock_);
  if (peer_ == Peer::linked)
    send_.have_reported();
}

void Qp::on_path_judged() {
  const std::lock_guard hold(lock_);
  if (!by_measure_ || peer_ != Peer::linked || by_packets_ == messages_.pays())
    return;
  by_packets_ = messages_.pays();
  begin_steering();
  send_.forget_key();
  send_.turn();
}

void Qp::on_down() {
  const std::lock_guard hold(lock_);
  if (peer_ != Peer::linked)
    return;
  messages_.leave();
  peer_ = Peer::lost;
  if (by_measure_)
    by_packets_ = false; // of the next link nothing is known
  prover_.reset(false);
  trace(observe::TraceKind::peer, static_cast<uint8_t>(Peer::lost));
  send_.on_gone();
  send_.turn();
  unloaded_.notify_all();
  world().service.after(bereavement, [weak = weak_from_this(), handle = handle_] {
    const auto self = weak.lock();
    if (!self)
      return;
    const std::lock_guard again(self->lock_);
    if (self->handle_ != handle || self->peer_ != Peer::lost)
      return;
    self->peer_ = Peer::unknown;
    self->send_.turn();
  });
}

void Qp::ask_peer() {
  if (!may_link_) {
    peer_ = Peer::stock;
    return;
  }
  peer_ = Peer::asking;
  prover_.reset(false);
  try {
    world().links().bind(local(), transfer::protocol_id,
                         [weak = weak_from_this(), handle = handle_](const link::Bound& bound) {
                           if (const auto self = weak.lock())
                             self->on_bound(handle, bound);
                         });
  } catch (...) { // who comes next asks again
    peer_ = Peer::unknown;
    throw;
  }
}

// Said as soon as it is known: the peer's first access will be refused by the device, and a soft
// RNIC raises no event for it here.
void Qp::warn_of_stock_peer(World& world, uint32_t qpn, const std::string& reason) {
  if (world.log.every("stock-peer", 5))
    world.log.warn("no adverb was found at the peer of queue pair {} ({}): the peer's access to "
                   "this process's unpinned regions fails with a remote access error; run the peer "
                   "under adverb, or pin regions with remote rights by policy",
                   qpn, reason);
}

void Qp::on_bound(uint64_t handle, const link::Bound& bound) {
  std::shared_ptr<transfer::Initiator> initiator;
  if (bound.verdict == link::Verdict::adverb && bound.channel)
    initiator = transfer::Initiator::of(bound.channel);
  if (initiator)
    initiator->attach(handle, this);
  {
    const std::lock_guard hold(lock_);
    if (handle == handle_ && peer_ == Peer::asking) {
      if (bound.channel && (!initiator || initiator->lost())) {
        peer_ = Peer::unknown; // its on_down() may have come too early for us: ask again
        prover_.reset(false);
      } else if (initiator) {
        messages_.join(initiator, handle_, bound.remote_handle);
        peer_ = Peer::linked;
        if (by_measure_) {
          messages_.judge_path();
          by_packets_ = messages_.pays();
        }
        begin_steering();
        prover_.learn_answer();
        trace(observe::TraceKind::peer, static_cast<uint8_t>(Peer::linked));
        if (bound.proven) {
          prover_.reset(true);
          trace(observe::TraceKind::proof, 1);
        }
      } else {
        peer_ = Peer::stock;
        prover_.reset(false);
        trace(observe::TraceKind::peer, static_cast<uint8_t>(Peer::stock));
        if (context_->regions().any_remote())
          warn_of_stock_peer(world(), qpn_, bound.reason);
      }
      choose_sends();
      send_.turn();
      return;
    }
  }
  if (initiator)
    initiator->detach(handle);
}

steering::Facts Qp::facts(const steering::Request& r) {
  steering::Facts facts;
  facts.opcode = r.wr.opcode;
  facts.length = r.length;
  facts.signaled = r.signaled;
  facts.length_max = length_max_;
  facts.connected = connected();
  facts.peer = peer_;
  if (!facts.connected || !steering::is_one_sided(r.wr.opcode)) {
    facts.ahead = may_go_ahead_ && goes_ahead(r);
    facts.proven = prover_.is_proven();
    if (facts.peer == Peer::linked && messages_.down())
      facts.peer = Peer::lost;
    return facts;
  }
  facts.remote_address = steering::remote_address(r.wr);
  if (facts.peer == Peer::linked) {
    if (messages_.down()) {
      facts.peer = Peer::lost; // on_down() comes, and settles first what is under way
    } else {
      facts.key = messages_.verdict(steering::remote_key(r.wr));
      // Nothing is served that is not proven; who asks of the key has that done.
      if (!prover_.is_proven() && facts.key.kind == steering::KeyVerdict::Kind::virtual_key)
        facts.key = {};
      facts.steered_away = steers_away(r, facts.key);
      if (waits_to_be_steered(r, facts))
        facts.key = {};
      const bool is_virtual = facts.key.kind == steering::KeyVerdict::Kind::virtual_key;
      // What is read by a view need not be kept in place, as what is leased.
      facts.viewed = is_virtual && !r.no_view && !messages_.lossy() && messages_.is_viewed(r);
      facts.leased = is_virtual && !facts.viewed && !messages_.lossy() && messages_.is_leased(r);
      if (is_virtual && !facts.leased && !facts.viewed && r.length != 0 &&
          !steering::is_atomic(r.wr.opcode))
        last_unleased_ = r.seq;
      facts.beside_unload =
          (facts.leased || facts.viewed) && messages_.busy() && r.seq - last_unleased_ <= along_run;
      // What has to wait for the device's lane is asked meanwhile.
      // And one that is sent in vain would be passed by what it must not be: order "relaxed".
      facts.key_likely_virtual = prover_.is_proven() && messages_.key_likely_virtual() &&
                                 !device_.busy() && send_.order() == steering::Order::strict;
    }
  }
  return facts;
}

// A key that was told to be real stays so while the peer's process lives, whatever becomes of the
// link; and a stock peer's all are.
bool Qp::is_real(uint32_t remote_key, steering::KeyAnswer& answer) {
  const Peer peer = peer_;
  if (peer == Peer::stock)
    answer = {remote_key, 0, &steering::never_changes};
  if (peer == Peer::stock)
    return true;
  if (peer != Peer::linked || !messages_.is_real(remote_key, answer))
    return false;
  answer.steered = steer_ != nullptr && !serves_none_ &&
                   messages_.verdict(remote_key).served != steering::KeyVerdict::none;
  return true;
}

void Qp::on_real(uint32_t remote_key) noexcept {
  way_trace_.note(world().trace, qpn_, {WayTrace::any_opcode, 0, remote_key},
                  ways::table().size() - 1,
                  peer_ == Peer::stock ? steering::Reason::peer_stock : steering::Reason::real_key);
}

void Qp::on_leased(const ibv_send_wr& wr, uint64_t length) noexcept {
  const auto table = ways::table();
  const auto leased =
      std::ranges::find(table, observe::Counter::posts_leased, &steering::WayRow::carried);
  way_trace_.note(world().trace, qpn_,
                  {static_cast<uint8_t>(wr.opcode), length, steering::remote_key(wr)},
                  static_cast<size_t>(leased - table.begin()), steering::Reason::virtual_key);
}

void Qp::on_way_chosen(const steering::Request& r, size_t row, steering::Reason reason) noexcept {
  if (connected() && steering::is_one_sided(r.wr.opcode))
    way_trace_.note(world().trace, qpn_,
                    {static_cast<uint8_t>(r.wr.opcode), r.length, steering::remote_key(r.wr)}, row,
                    reason);
}

void Qp::trace(observe::TraceKind kind, uint8_t what) noexcept {
  world().trace.add({.qpn = qpn_, .kind = kind, .first = what});
}

// By the same rules as facts().
const std::shared_ptr<transfer::Leases>* Qp::leases(uint64_t& longest) {
  if (peer_ != Peer::linked || !prover_.is_proven() || messages_.lossy() || messages_.down())
    return nullptr;
  longest = length_max_;
  return &messages_.leases();
}

uint32_t Qp::epoch(const steering::Request& r) const noexcept {
  return connected() && steering::is_one_sided(r.wr.opcode) && peer_ == Peer::linked
             ? messages_.verdict(steering::remote_key(r.wr)).epoch
             : 0;
}

void Qp::ask_key(const steering::Request& r) {
  const bool names = steering::is_one_sided(r.wr.opcode);
  if (prover_.is_proven() && peer_ == Peer::linked && names)
    messages_.ask_key(steering::remote_key(r.wr));
  else if (!prover_.is_proven())
    prover_.prove(r, !names || (by_packets_ && steer_ != nullptr && !serves_none_)
                         ? link::any_key
                         : steering::remote_key(r.wr));
}

// The caller detaches from what is returned.
std::shared_ptr<transfer::Initiator> Qp::leave_unproven() {
  if (world().log.every("unproven", 5))
    world().log.warn("queue pair {} and its peer could not prove themselves to each other; the "
                     "peer's unpinned regions cannot be reached; the peer's log may say why",
                     qpn_);
  peer_ = Peer::stock;
  trace(observe::TraceKind::proof, 0);
  world().links().unbind(handle_);
  return messages_.leave();
}

void Qp::tell_prover(uint64_t handle, const std::function<Prover::Outcome(Prover&)>& tell) {
  std::shared_ptr<transfer::Initiator> left;
  {
    const std::lock_guard hold(lock_);
    if (handle != handle_)
      return;
    const bool was_proven = prover_.is_proven();
    const Prover::Outcome outcome = tell(prover_);
    if (outcome == Prover::Outcome::none)
      return;
    if (outcome == Prover::Outcome::given_up)
      left = leave_unproven();
    else if (prover_.is_proven() && !was_proven)
      trace(observe::TraceKind::proof, 1);
    send_.turn();
  }
  if (left)
    left->detach(handle);
}

bool Qp::learn_key(uint32_t key, steering::KeyVerdict::Kind kind) {
  if (peer_ != Peer::linked)
    return false;
  if (key != link::any_key)
    messages_.learn(key, kind);
  return true;
}

void Qp::aside_landed(bool ok) {
  prover_.on_landed(ok);
}

void Qp::executed_again() {
  world().counters.count(observe::Counter::reads_again);
}

void Qp::later(std::chrono::nanoseconds delay, steering::Way& way) {
  world().service.after(delay, [weak = weak_from_this(), &way] {
    if (const auto self = weak.lock()) { // ways live as long as their queue pair
      const std::lock_guard hold(self->lock_);
      way.due();
    }
  });
}

} // namespace adverb::model
