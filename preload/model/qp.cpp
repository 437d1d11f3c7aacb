// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Posts, completions and what the transfer room asks of a queue pair. States: qp_state.cpp.
#include "model/qp.h"
#include "link/service.h"
#include "model/srq.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "provider/ops.h"
#include "provider/real.h"

#include <cerrno>
#include <chrono>
#include <sys/random.h>

namespace adverb::model {

using observe::Counter;

namespace {

// What the link carried is given to the device only after a while: the kernel of a peer that was
// killed closes its sockets before its queue pairs, and one that is still there would answer with a
// NAK for the reserved key where stock programs see the peer vanish.
constexpr std::chrono::milliseconds bereavement{500};

// Handles name a queue pair to its peer and are a capability too: who does not know one cannot
// address the queue pair, so they are drawn at random.
uint64_t new_handle() {
  uint64_t handle = 0;
  while (handle == 0)
    if (getrandom(&handle, sizeof handle, 0) != sizeof handle)
      handle = 0;
  return handle;
}

} // namespace

Qp::Qp(Parts parts, ibv_qp* qp, ibv_qp_type type, const ibv_qp_cap& cap, bool all_signaled,
       uint32_t extra_send)
    : context_(std::move(parts.context)), pd_(std::move(parts.pd)),
      send_cq_(std::move(parts.send_cq)), recv_cq_(std::move(parts.recv_cq)),
      srq_(std::move(parts.srq)), qp_(qp), type_(type), qpn_(qp->qp_num), extra_send_(extra_send),
      send_(*this, cap, all_signaled) {
  if (!srq_)
    receive_ = std::make_unique<ReceiveQueue>(*context_, pd_->verbs, pd_->staging, cap.max_recv_wr,
                                              cap.max_recv_sge);
  const policy::QpQuery query{context_->device(), type};
  may_link_ = one_sided() && policy::current().peers(query) == policy::Peers::automatic;
  relaxed_ = policy::current().order(query) == policy::Order::relaxed;
  handle_ = new_handle();
  send_cq_->attach(qpn_, this, cap.max_send_wr);
  if (recv_cq_ != send_cq_)
    recv_cq_->attach(qpn_, this, 0);
}

Qp::~Qp() = default;

void Qp::incarnate() {
  handle_ = new_handle();
}

void Qp::announce() {
  if (!may_link_)
    return;
  context_->use_device();
  transfer::Targets::get().add(handle_, this);
  link::Links::get().publish(local());
}

// Takes the present incarnation away from peers and replies: when this returns, nothing of it runs.
void Qp::retire_incarnation() {
  std::shared_ptr<transfer::Initiator> initiator;
  const uint64_t handle = handle_;
  {
    const std::lock_guard hold(lock_);
    initiator = std::move(initiator_);
    peer_ = Peer::unknown;
    send_.stop();
  }
  if (may_link_) {
    transfer::Targets::get().remove(handle);
    link::Links::get().cancel_bind(handle);
    link::Links::get().withdraw(qpn_, qp_->context->device, handle);
  }
  if (initiator)
    initiator->detach(handle);
  context_->barrier();
  for (auto& [id, grant] : grants)
    context_->regions().revoke(grant);
  grants.clear();
  halted_run = 0;
  const std::lock_guard immediates(immediates_lock_);
  immediates_.clear();
  received_ = 0;
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
  // The provider's queue pair is gone: no completion of it can come any more.
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
    provider::real().ibv_query_gid(qp_->context, attr_.ah_attr.port_num,
                                   attr_.ah_attr.grh.sgid_index, &l.sgid);
  }
  return l;
}

int Qp::post_send(ibv_send_wr* wr, ibv_send_wr** bad) {
  const std::lock_guard hold(lock_);
  int rc = 0;
  for (; wr != nullptr && rc == 0; wr = rc == 0 ? wr->next : wr) {
    rc = state_ < IBV_QPS_RTS ? EINVAL : send_.append(*wr);
    if (rc == 0) {
      rc = send_.pump(send_.tail() - 1);
      if (rc == 0 && !send_.all_issued())
        observe::count(Counter::posts_queued);
    }
    if (rc != 0) {
      *bad = wr;
      return rc;
    }
  }
  return rc;
}

int Qp::post_recv(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  if (!receive_) {
    *bad = wr;
    return EINVAL;
  }
  const std::lock_guard hold(lock_);
  return post_receives(*receive_, wr, bad, [this](ibv_recv_wr* mine) {
    ibv_recv_wr* unused = nullptr;
    return provider::ops(qp_->context).post_recv(qp_, mine, &unused);
  });
}

void Qp::begin() {
  lock_.lock();
  build_from_ = send_.tail();
  build_error_ = state_ < IBV_QPS_RTS ? EINVAL : 0;
}

int Qp::commit() {
  int rc = build_error_;
  if (rc == 0) {
    for (Built& b : build_list_) {
      ibv_sge whole{reinterpret_cast<uintptr_t>(b.inlined.data()),
                    static_cast<uint32_t>(b.inlined.size()), 0};
      const bool inlined = (b.wr.send_flags & IBV_SEND_INLINE) != 0 && !b.inlined.empty();
      b.wr.sg_list = inlined ? &whole : b.sges.data();
      b.wr.num_sge = inlined ? 1 : static_cast<int>(b.sges.size());
      if ((rc = send_.append(b.wr)) != 0)
        break;
    }
  }
  if (rc != 0)
    send_.truncate(build_from_);
  else
    rc = send_.pump(build_from_);
  build_list_.clear();
  lock_.unlock();
  return rc;
}

void Qp::abort() {
  build_list_.clear();
  lock_.unlock();
}

void Qp::on_completion(const Completion& completion, Cq& cq) {
  Completion c = completion;
  if ((c.wc.wr_id & receive_bit) == 0) {
    const std::lock_guard hold(lock_);
    send_.on_provider_completion(c);
    return;
  }
  std::optional<uint64_t> wr_id;
  if (srq_) {
    wr_id = srq_->complete(c.wc);
  } else {
    const std::lock_guard hold(lock_);
    wr_id = receive_->complete(c.wc);
  }
  if (!wr_id)
    return;
  c.wc.wr_id = *wr_id;
  if (c.wc.status == IBV_WC_SUCCESS) {
    const std::lock_guard hold(immediates_lock_);
    ++received_;
    while (!immediates_.empty() && immediates_.front().n < received_)
      immediates_.pop_front();
    if (!immediates_.empty() && immediates_.front().n == received_) {
      c.wc.byte_len = immediates_.front().bytes;
      immediates_.pop_front();
    }
  }
  cq.push(c);
}

bool Qp::waits_for_completion() {
  const std::lock_guard hold(lock_);
  return send_.waits_for_provider();
}

bool Qp::settle_receives() {
  const uint32_t staged = srq_ ? srq_->staged() : receive_->staged();
  return staged == 0 || recv_cq_->try_settle();
}

void Qp::try_again() {
  const std::lock_guard hold(lock_);
  send_.pump();
}

void Qp::expect_immediate(uint64_t n, uint32_t bytes) {
  const std::lock_guard hold(immediates_lock_);
  immediates_.push_back({n, bytes});
}

bool Qp::allows(transfer::Right right) const {
  const ibv_qp_state state = state_;
  if (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_SQD)
    return false;
  const unsigned access = access_;
  switch (right) {
  case transfer::Right::write:
    return (access & IBV_ACCESS_REMOTE_WRITE) != 0;
  case transfer::Right::read:
    return (access & IBV_ACCESS_REMOTE_READ) != 0;
  default:
    return (access & IBV_ACCESS_REMOTE_ATOMIC) != 0;
  }
}

void Qp::on_reply(const transfer::ReplyHeader& reply, std::span<const std::byte> payload) {
  const std::lock_guard hold(lock_);
  if (peer_ != Peer::linked)
    return;
  send_.on_reply(reply, payload);
  if (!send_.unloading())
    unloaded_.notify_all();
}

void Qp::on_credit() {
  const std::lock_guard hold(lock_);
  if (peer_ == Peer::linked)
    send_.pump();
}

void Qp::on_down() {
  const std::lock_guard hold(lock_);
  if (peer_ != Peer::linked)
    return;
  initiator_.reset();
  peer_ = Peer::lost;
  send_.on_down();
  unloaded_.notify_all();
  link::Service::get().after(bereavement, [weak = weak_from_this(), handle = handle_] {
    const auto self = weak.lock();
    if (!self)
      return;
    const std::lock_guard again(self->lock_);
    if (self->handle_ != handle || self->peer_ != Peer::lost)
      return;
    self->peer_ = Peer::unknown;
    self->send_.pump();
  });
}

void Qp::ask_peer() {
  if (!may_link_) {
    peer_ = Peer::stock;
    return;
  }
  peer_ = Peer::asking;
  link::Links::get().bind(local(), [weak = weak_from_this(), handle = handle_](link::Bound bound) {
    if (const auto self = weak.lock())
      self->on_bound(handle, bound);
  });
}

// Said as soon as it is known: the peer's first access will be refused by the device, and a soft
// RNIC raises no event for it here.
void Qp::warn_of_stock_peer(uint32_t qpn, const std::string& reason) {
  if (observe::log_every("stock-peer", 5))
    observe::log_warn("no adverb was found at the peer of queue pair {} ({}): its remote access to "
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
        initiator_ = initiator;
        remote_handle_ = bound.remote_handle;
        peer_ = Peer::linked;
      } else {
        peer_ = Peer::stock;
        if (context_->regions().any_remote())
          warn_of_stock_peer(qpn_, bound.reason);
      }
      send_.pump();
      return;
    }
  }
  if (initiator)
    initiator->detach(handle);
}

void Qp::schedule_grant_release() {
  link::Service::get().after(std::chrono::milliseconds(50), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      const std::lock_guard hold(self->lock_);
      self->send_.grants_idle();
    }
  });
}

} // namespace adverb::model
