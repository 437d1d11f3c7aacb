// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Posts, completions and what the transfer room asks of a queue pair. States: qp_state.cpp.
#include "model/qp.h"
#include "model/srq.h"
#include "model/ways.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "provider/ops.h"
#include "provider/real.h"
#include "steering/opcode.h"
#include "transfer/protocol.h"
#include "world/world.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace adverb::model {

using observe::Counter;
using steering::Peer;

namespace {

// What the link carried is given to the device only after a while: the kernel of a peer that was
// killed closes its sockets before its queue pairs, and one that is still there would answer with a
// NAK for the reserved key where stock programs see the peer vanish.
constexpr std::chrono::milliseconds bereavement{500};

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
  return (context.next_queue() & numbers_mask) << numbers_shift;
}

steering::Order order(World& world, std::string_view device, ibv_qp_type type) {
  return world.policy().order({device, type}) == policy::Order::relaxed ? steering::Order::relaxed
                                                                        : steering::Order::strict;
}

} // namespace

World& Qp::world() const noexcept {
  return context_->world();
}

Qp::Qp(Parts parts, ibv_qp* qp, ibv_qp_type type, const ibv_qp_cap& cap, bool all_signaled,
       uint32_t extra_send)
    : context_(std::move(parts.context)), pd_(std::move(parts.pd)),
      send_cq_(std::move(parts.send_cq)), recv_cq_(std::move(parts.recv_cq)),
      srq_(std::move(parts.srq)), qp_(qp), type_(type), qpn_(qp->qp_num), extra_send_(extra_send),
      first_number_(first_number(*context_)), ring_(cap, all_signaled, first_number_, connected()),
      elements_(world(), context_->regions(), pd_->staging, pd_->verbs, context_->copy_below(),
                ring_),
      device_(*this, ring_), messages_(world(), ring_, type == IBV_QPT_UC),
      send_({world(),
             *this,
             ring_,
             elements_,
             device_,
             {&messages_},
             messages_,
             ways(),
             order(world(), context_->device(), type)}) {
  if (!srq_)
    receive_ = std::make_unique<ReceiveQueue>(*context_, pd_->verbs, pd_->staging, cap.max_recv_wr,
                                              cap.max_recv_sge);
  const policy::QpQuery query{context_->device(), type};
  may_link_ = connected() && world().policy().peers(query) == policy::Peers::automatic;
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

// Takes the present incarnation away from peers and replies: when this returns, nothing of it runs.
void Qp::retire_incarnation() {
  std::shared_ptr<transfer::Initiator> initiator;
  const uint64_t handle = handle_;
  {
    const std::lock_guard hold(lock_);
    initiator = messages_.leave();
    peer_ = Peer::unknown;
    send_.stop();
  }
  if (may_link_) {
    world().targets().remove(handle);
    world().links().cancel_bind(handle);
    world().links().withdraw(qpn_, qp_->context->device, handle);
  }
  if (initiator)
    initiator->detach(handle);
  context_->barrier();
  for (auto& [id, grant] : grants)
    context_->regions().revoke(grant);
  grants.clear();
  halted_run = 0;
}

void Qp::close() {
  before_close_ = state_.exchange(IBV_QPS_RESET);
  retire_incarnation();
  send_cq_->settle();
  if (recv_cq_ != send_cq_)
    recv_cq_->settle();
}

void Qp::reopen() {
  state_ = before_close_;
  const std::lock_guard hold(lock_);
  send_.resume();
}

void Qp::forget() {
  // The provider's queue pair is gone: no completion of it comes any more but those it has left.
  send_cq_->detach(qpn_, this);
  recv_cq_->detach(qpn_, this);
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
  const ibv_qp_state state = state_;
  l.connected = state != IBV_QPS_RESET && state != IBV_QPS_INIT;
  if (l.connected) {
    l.dest_qpn = attr_.dest_qp_num;
    l.ah = attr_.ah_attr;
    l.mtu = attr_.path_mtu;
    l.rq_psn = attr_.rq_psn;
    l.timeout = attr_.timeout;
    l.retry_cnt = attr_.retry_cnt;
    const provider::Inside inside;
    world().provider.real().ibv_query_gid(qp_->context, attr_.ah_attr.port_num,
                                          attr_.ah_attr.grh.sgid_index, &l.sgid);
  }
  return l;
}

// Issues what was appended from `from` on; posts of one call share a doorbell where they go one
// way. errno value, with `refused` the first request that was not taken.
inline int Qp::issue_from(uint64_t from, uint64_t& refused, bool whole) {
  const auto answer = send_.turn(from, whole);
  refused = answer.seq;
  if (answer.why == 0 && !send_.all_issued())
    world().counters.count(Counter::posts_queued, std::min(send_.unissued(), ring_.tail() - from));
  return answer.why;
}

int Qp::post_send(ibv_send_wr* list, ibv_send_wr** bad) {
  const std::lock_guard hold(lock_);
  const uint64_t from = ring_.tail();
  int rc = 0;
  ibv_send_wr* wr = list;
  for (; wr != nullptr; wr = wr->next) {
    rc = state_ < IBV_QPS_RTS ? EINVAL : ring_.append(*wr);
    if (rc != 0)
      break;
  }
  uint64_t refused = 0;
  if (const int why = ring_.tail() != from ? issue_from(from, refused) : 0; why != 0) {
    rc = why;
    wr = list;
    for (uint64_t seq = from; seq < refused; ++seq)
      wr = wr->next;
  }
  if (rc != 0)
    *bad = wr;
  return rc;
}

// Windows of type 1 are bound by a call of their own, which posts a request like others and tells
// the window's next key at once. One that has to wait in the queue is told it by the rule that
// providers follow.
int Qp::bind_mw(ibv_mw* mw, ibv_mw_bind* bind) {
  const std::lock_guard hold(lock_);
  if (state_ < IBV_QPS_RTS)
    return EINVAL;
  binds_ = true;
  const uint32_t before = mw->rkey;
  const uint64_t from = ring_.tail();
  ibv_send_wr wr{};
  wr.wr_id = bind->wr_id;
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = bind->send_flags;
  wr.bind_mw = {mw, ibv_inc_rkey(before), bind->bind_info};
  if (const int rc = ring_.append(wr); rc != 0)
    return rc;
  mw->rkey = wr.bind_mw.rkey;
  uint64_t refused = 0;
  const int why = issue_from(from, refused);
  if (why != 0)
    mw->rkey = before;
  return why;
}

int Qp::post_bind(const ibv_send_wr& wr) {
  ibv_mw* mw = wr.bind_mw.mw;
  const uint32_t told = mw->rkey; // of a later one, perhaps
  mw->rkey = (wr.bind_mw.rkey & ~0xFFU) | ((wr.bind_mw.rkey - 1) & 0xFFU);
  ibv_mw_bind bind{wr.wr_id, wr.send_flags, wr.bind_mw.bind_info};
  const int rc = world().provider.ops(qp_->context).bind_mw(qp_, mw, &bind);
  if (rc == 0 && mw->rkey != wr.bind_mw.rkey && world().log.every("bind-key", 10))
    world().log.error("a memory window was bound under key {:#x}, where {:#x} was expected",
                      mw->rkey, wr.bind_mw.rkey);
  if (rc != 0 || told != wr.bind_mw.rkey)
    mw->rkey = told;
  return rc;
}

// A list with such requests in it: what is between them goes as lists.
int Qp::post_with_binds(ibv_send_wr* list, ibv_send_wr** bad) {
  const auto is_bind = [](const ibv_send_wr& wr) {
    return wr.opcode == IBV_WR_BIND_MW && wr.bind_mw.mw->type == IBV_MW_TYPE_1;
  };
  while (list != nullptr) {
    ibv_send_wr* last = list;
    while (last->next != nullptr && !is_bind(*list) && !is_bind(*last->next))
      last = last->next;
    ibv_send_wr* rest = std::exchange(last->next, nullptr);
    *bad = list;
    const int rc = is_bind(*list) ? post_bind(*list)
                                  : world().provider.ops(qp_->context).post_send(qp_, list, bad);
    last->next = rest;
    if (rc != 0)
      return rc;
    list = rest;
  }
  return 0;
}

int Qp::post_recv(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  if (!receive_) {
    *bad = wr;
    return EINVAL;
  }
  const std::lock_guard hold(lock_);
  return post_receives(*receive_, wr, bad, [this](ibv_recv_wr* mine) {
    ibv_recv_wr* unused = nullptr;
    return world().provider.ops(qp_->context).post_recv(qp_, mine, &unused);
  });
}

void Qp::begin() {
  building_.lock();
  build_error_ = state_ < IBV_QPS_RTS ? EINVAL : 0;
}

Qp::Built& Qp::build() {
  if (built_ == build_list_.size())
    build_list_.emplace_back();
  Built& fresh = build_list_[built_++];
  fresh.wr = {};
  fresh.sges.clear();
  fresh.inlined.clear();
  return fresh;
}

int Qp::commit() {
  std::unique_lock hold(lock_);
  const uint64_t from = ring_.tail();
  int rc = build_error_;
  uint64_t refused = 0;
  if (rc == 0) {
    for (Built& b : std::span(build_list_).first(built_)) {
      ibv_sge whole{reinterpret_cast<uintptr_t>(b.inlined.data()),
                    static_cast<uint32_t>(b.inlined.size()), 0};
      const bool inlined = (b.wr.send_flags & IBV_SEND_INLINE) != 0 && !b.inlined.empty();
      b.wr.sg_list = inlined ? &whole : b.sges.data();
      b.wr.num_sge = inlined ? 1 : static_cast<int>(b.sges.size());
      if ((rc = ring_.append(b.wr)) != 0)
        break;
    }
  }
  if (rc != 0)
    ring_.truncate(from);
  else if (built_ != 0)
    rc = issue_from(from, refused, true);
  built_ = 0;
  hold.unlock();
  building_.unlock();
  return rc;
}

void Qp::abort() {
  built_ = 0;
  building_.unlock();
}

void Qp::on_completion(const Completion& completion, Cq& cq) {
  if ((completion.wc.wr_id & receive_bit) == 0) {
    const std::lock_guard hold(lock_);
    if (completion.wc.status != IBV_WC_SUCCESS)
      broken(type_ == IBV_QPT_RC ? IBV_QPS_ERR : IBV_QPS_SQE);
    send_.on_completion(completion);
    return;
  }
  Completion c = completion;
  // What arrived behind a message that could not be delivered would not have arrived.
  if (undelivered_ && c.wc.status == IBV_WC_SUCCESS)
    c.wc.status = IBV_WC_WR_FLUSH_ERR;
  std::optional<uint64_t> wr_id;
  if (srq_) {
    wr_id = srq_->complete(c.wc, receipts_);
  } else {
    const std::lock_guard hold(lock_);
    wr_id = receive_->complete(c.wc, receipts_);
  }
  if (!wr_id)
    return;
  c.wc.wr_id = *wr_id;
  if (c.wc.status == completion.wc.status)
    cq.push(c);
  else
    cq.push_own(c); // an error that the device's event did not tell of
  if (c.wc.status != IBV_WC_SUCCESS)
    receive_failed(completion.wc.status == IBV_WC_SUCCESS);
}

// A receive has failed, `here` or at the device. That ends an RC queue pair, and any that adverb
// has taken a message for which it cannot deliver. Of others the device decides: many let UC and UD
// go on. What is flushed must not be executed, so the device's is moved, too, unless it has been:
// one that is asked once more may raise its event once more.
void Qp::receive_failed(bool here) {
  undelivered_ = undelivered_ || here;
  const std::lock_guard hold(lock_);
  if (state_ < IBV_QPS_RTR || state_ == IBV_QPS_ERR)
    return;
  const bool moved = device_state() == IBV_QPS_ERR;
  if (!moved && !here && type_ != IBV_QPT_RC)
    return;
  if (moved)
    state_ = IBV_QPS_ERR;
  else
    enter_error();
  send_.fail();
}

bool Qp::waits_for_completion() {
  const std::lock_guard hold(lock_);
  return send_.waits_for_device();
}

CqUser::Numbers Qp::numbers() {
  const std::lock_guard hold(lock_);
  return {first_number_, ring_.tail()};
}

bool Qp::settle_receives() {
  const uint32_t staged = srq_ ? srq_->staged() : receive_->staged();
  return staged == 0 || recv_cq_->try_settle();
}

void Qp::try_again() {
  const std::lock_guard hold(lock_);
  send_.turn();
}

void Qp::expect_immediate(uint64_t n, uint32_t bytes) {
  receipts_.expect({.number = n, .bytes = bytes});
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

void Qp::on_reply(const transfer::ReplyHeader& reply, std::span<const std::byte> payload) {
  const std::lock_guard hold(lock_);
  if (peer_ != Peer::linked)
    return;
  messages_.on_reply(reply, payload);
  send_.turn();
  if (!send_.carrying())
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

void Qp::on_down() {
  const std::lock_guard hold(lock_);
  if (peer_ != Peer::linked)
    return;
  messages_.leave();
  peer_ = Peer::lost;
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
  world().links().bind(local(), transfer::protocol_id,
                       [weak = weak_from_this(), handle = handle_](const link::Bound& bound) {
                         if (const auto self = weak.lock())
                           self->on_bound(handle, bound);
                       });
}

// Said as soon as it is known: the peer's first access will be refused by the device, and a soft
// RNIC raises no event for it here.
void Qp::warn_of_stock_peer(World& world, uint32_t qpn, const std::string& reason) {
  if (world.log.every("stock-peer", 5))
    world.log.warn("no adverb was found at the peer of queue pair {} ({}): its remote access to "
                   "this process's unpinned regions fails with a remote access error; run it "
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
      if (initiator && initiator->lost()) {
        peer_ = Peer::unknown; // its on_down() may have come too early for us: ask again
      } else if (initiator) {
        messages_.join(initiator, handle_, bound.remote_handle);
        peer_ = Peer::linked;
      } else {
        peer_ = Peer::stock;
        if (context_->regions().any_remote())
          warn_of_stock_peer(world(), qpn_, bound.reason);
      }
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
  facts.length_max = length_max_;
  facts.connected = connected();
  facts.peer = peer_;
  if (!facts.connected || !steering::is_one_sided(r.wr.opcode))
    return facts;
  facts.remote_address = steering::remote_address(r.wr);
  if (facts.peer == Peer::linked) {
    if (messages_.down())
      facts.peer = Peer::lost; // on_down() comes, and settles first what is under way
    else
      facts.key = messages_.verdict(steering::remote_key(r.wr));
  }
  return facts;
}

uint32_t Qp::epoch(const steering::Request& r) const noexcept {
  return connected() && steering::is_one_sided(r.wr.opcode) && peer_ == Peer::linked
             ? messages_.verdict(steering::remote_key(r.wr)).epoch
             : 0;
}

void Qp::ask_key(const steering::Request& r) {
  messages_.ask_key(steering::remote_key(r.wr));
}

void Qp::complete(const Completion& completion, bool announced) {
  Completion c = completion;
  c.wc.qp_num = qpn_;
  if (announced)
    send_cq_->push(c);
  else
    send_cq_->push_own(c);
}

void Qp::later(std::chrono::nanoseconds delay, steering::Way& way) {
  world().service.after(delay, [weak = weak_from_this(), &way] {
    if (const auto self = weak.lock()) { // ways live as long as their queue pair
      const std::lock_guard hold(self->lock_);
      way.due();
    }
  });
}

int Qp::post_send_to_provider(ibv_send_wr* list, ibv_send_wr** bad) {
  const provider::Inside inside;
  if (binds_) [[unlikely]]
    return post_with_binds(list, bad);
  return world().provider.ops(qp_->context).post_send(qp_, list, bad);
}

bool Qp::take_marker() {
  if (!send_cq_->take_marker(qpn_))
    return false;
  world().counters.count(Counter::drains);
  return true;
}

void Qp::marker_landed() {
  send_cq_->marker_landed();
  world().counters.count(Counter::markers);
}

void Qp::request_drain() {
  send_cq_->request_drain();
}

} // namespace adverb::model
