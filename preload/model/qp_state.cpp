// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A queue pair's way through its states; the table is in qp.h.
#include "model/qp.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "provider/real.h"
#include "transfer/protocol.h"
#include "world/world.h"

#include <cerrno>
#include <chrono>
#include <new>

namespace adverb::model {

namespace {
// A program that asks for SQD while its peer is stopped shall not hang for ever in ibv_modify_qp.
constexpr std::chrono::seconds drain_limit{5};
constexpr std::chrono::milliseconds answer_limit{200};
} // namespace

void Qp::captured(const ibv_qp_attr& attr, int mask) {
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0)
    access_ = attr.qp_access_flags;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0)
    responder_resources_ = attr.max_dest_rd_atomic;
  if ((mask & IBV_QP_PORT) != 0)
    attr_.port_num = attr.port_num;
  if ((mask & IBV_QP_PKEY_INDEX) != 0)
    attr_.pkey_index = attr.pkey_index;
  if ((mask & IBV_QP_AV) != 0)
    attr_.ah_attr = attr.ah_attr;
  if ((mask & IBV_QP_DEST_QPN) != 0)
    attr_.dest_qp_num = attr.dest_qp_num;
  if ((mask & IBV_QP_PATH_MTU) != 0)
    attr_.path_mtu = attr.path_mtu;
  if ((mask & IBV_QP_RQ_PSN) != 0)
    attr_.rq_psn = attr.rq_psn;
  if ((mask & IBV_QP_TIMEOUT) != 0)
    attr_.timeout = attr.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0)
    attr_.retry_cnt = attr.retry_cnt;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0)
    attr_.max_rd_atomic = attr.max_rd_atomic;
}

void Qp::learn_length_max() {
  const provider::Inside inside;
  ibv_port_attr port{};
  if (world().provider.real().ibv_query_port(qp_->context, attr_.ah_attr.port_num,
                                             reinterpret_cast<_compat_ibv_port_attr*>(&port)) ==
          0 &&
      port.max_msg_sz != 0)
    length_max_ = port.max_msg_sz;
}

void Qp::entered(ibv_qp_state before, ibv_qp_state now) {
  if (now == IBV_QPS_RTR && before == IBV_QPS_INIT && may_link_) {
    if (attr_.ah_attr.port_num == 0)
      attr_.ah_attr.port_num = attr_.port_num;
    learn_length_max();
    {
      const std::lock_guard hold(lock_);
      look_at_reliability();
    }
    world().links().connected(local());
    // A side that only answers never moves on to RTS, but has to know who will ask.
    if (context_->regions().any_remote())
      world().links().probe(local(), [&world = world(), qpn = qpn_,
                                      weak = weak_from_this()](const link::Bound& bound) {
        // One that is gone by now tells nothing of a host known to run adverb.
        if (bound.verdict != link::Verdict::adverb && !(bound.host_known && weak.expired()))
          warn_of_stock_peer(world, qpn, bound.reason);
      });
  }
  if (now != IBV_QPS_RTS)
    return;
  if (may_link_ && before == IBV_QPS_RTR) {
    send_cq_->ensure_kick(attr_.ah_attr);
    // The first one-sided request asks the peer; where such were made before, ahead of it, so that
    // it finds the answer. The device has moved by now: what cannot be asked does not fail the
    // move, and that request asks again.
    try {
      const bool met = world().links().has_met(local(), transfer::protocol_id);
      const std::lock_guard hold(lock_);
      if (met && peer_ == steering::Peer::unknown)
        ask_peer();
    } catch (const std::bad_alloc&) {
      world().counters.count(observe::Counter::exceptions_caught);
    }
  }
  if (before == IBV_QPS_SQE)
    send_cq_->settle(); // what failed before tells of nothing that comes
  const std::lock_guard hold(lock_);
  if (before == IBV_QPS_SQE)
    send_.recover();
  send_.pause(false);
  send_.turn();
}

// What a device has sent lands at once, if at all. What the peer's CPU has been asked for lands
// when it comes to that, and then over what others have written meanwhile: so it answers first. A
// peer that does not answer is not waited for by each of its queue pairs.
void Qp::stop_and_await_answers() {
  std::unique_lock hold(lock_);
  send_.stop();
  if (!messages_.busy() || messages_.is_silent())
    return;
  const auto limit = std::chrono::steady_clock::now() + answer_limit;
  if (unloaded_.wait_until(hold, limit, [this] { return !messages_.busy(); }))
    return;
  messages_.note_silence();
  if (world().log.every("silent-peer", 10))
    world().log.warn("queue pair {} ends while its peer has not answered for {} ms: the peer may "
                     "carry out later what it was asked for",
                     qpn_, answer_limit.count());
}

// Peers' requests and replies end first, then the provider's state changes, then what was under way
// or waiting is posted to be flushed.
int Qp::to_error(ibv_qp_attr* attr, int mask) {
  stop_and_await_answers();
  leaving_ = true;
  context_->barrier({.target = handle_});
  const ibv_qp_state before = state_.exchange(IBV_QPS_ERR);
  const provider::Inside inside;
  const int rc = world().provider.real().ibv_modify_qp(qp_, attr, mask);
  leaving_ = false;
  const std::lock_guard hold(lock_);
  send_.pause(false);
  if (rc == 0) {
    send_.fail();
    end_rights();
  } else {
    state_ = before;
  }
  send_.resume();
  return rc;
}

// The device has moved it there; lock_ held. False: that was known.
bool Qp::broken(ibv_qp_state now) {
  const ibv_qp_state was = state_;
  if (was < IBV_QPS_RTR || was >= now)
    return false;
  fell(now);
  return true;
}

// Without the program's asking: before it is told, who has looked at the state has done with it.
void Qp::fell(ibv_qp_state now) {
  state_ = now;
  send_cq_->await_peers(handle_);
  recv_cq_->await_peers(handle_);
  if (now == IBV_QPS_ERR)
    end_rights();
}

ibv_qp_state Qp::device_state() const {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  const provider::Inside inside;
  return world().provider.real().ibv_query_qp(qp_, &attr, IBV_QP_STATE, &init) == 0
             ? attr.qp_state
             : IBV_QPS_UNKNOWN;
}

void Qp::look_at_state() {
  uint64_t handle = 0;
  {
    const std::lock_guard hold(lock_);
    handle = handle_;
  }
  const ibv_qp_state now = device_state();
  if (now != IBV_QPS_ERR && now != IBV_QPS_SQE)
    return;
  {
    const std::lock_guard hold(lock_);
    if (handle != handle_ || !broken(now)) // another thread may have reset and connected it
      return;
    send_.fail();
  }
  context_->barrier({.target = handle_});
}

void Qp::enter_error() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  const provider::Inside inside;
  world().provider.real().ibv_modify_qp(qp_, &attr, IBV_QP_STATE);
  fell(IBV_QPS_ERR);
}

int Qp::to_reset(ibv_qp_attr* attr, int mask) {
  stop_and_await_answers();
  leaving_ = true;
  context_->barrier({.target = handle_});
  const ibv_qp_state before = state_.exchange(IBV_QPS_RESET);
  send_cq_->settle();
  recv_cq_->settle();
  const provider::Inside inside;
  const int rc = world().provider.real().ibv_modify_qp(qp_, attr, mask);
  if (rc != 0) {
    state_ = before;
    leaving_ = false;
    const std::lock_guard hold(lock_);
    send_.resume();
    return rc;
  }
  part_from_peer();
  end_target();
  send_cq_->was_reset(qpn_, this);
  if (recv_cq_ != send_cq_)
    recv_cq_->was_reset(qpn_, this);
  receipts_.clear();
  {
    const std::lock_guard hold(lock_);
    send_.clear();
    if (receive_)
      receive_->clear();
    undelivered_ = false; // the last completions of the old incarnation have been taken
    incarnate();
  }
  announce();
  return 0;
}

void Qp::wait_until_unloaded() {
  std::unique_lock hold(lock_);
  send_.pause(true);
  const auto limit = std::chrono::steady_clock::now() + drain_limit;
  if (!unloaded_.wait_until(hold, limit, [this] { return !send_.carrying(); }))
    world().log.warn("queue pair {} enters SQD while its peer has not answered for 5 s", qpn_);
}

int Qp::modify(ibv_qp_attr* attr, int mask) {
  const bool moves = (mask & IBV_QP_STATE) != 0;
  const ibv_qp_state to = moves ? attr->qp_state : state_.load();
  if (moves && to == IBV_QPS_ERR)
    return to_error(attr, mask);
  if (moves && to == IBV_QPS_RESET)
    return to_reset(attr, mask);
  if (moves && to == IBV_QPS_SQD && state_ == IBV_QPS_RTS)
    wait_until_unloaded();
  if (moves && to == IBV_QPS_RTR)
    receipts_.start();
  int rc = 0;
  {
    const provider::Inside inside;
    rc = world().provider.real().ibv_modify_qp(qp_, attr, mask);
  }
  if (rc != 0) {
    const std::lock_guard hold(lock_);
    if (state_ == IBV_QPS_RTS) {
      send_.pause(false);
      send_.turn(); // what might have been issued meanwhile
    }
    return rc;
  }
  {
    const std::lock_guard hold(lock_);
    captured(*attr, mask);
  }
  // By what it allows a peer proves itself.
  if (may_link_ && (mask & (IBV_QP_ACCESS_FLAGS | IBV_QP_MAX_DEST_RD_ATOMIC)) != 0 &&
      state_ >= IBV_QPS_RTR)
    world().links().connected(local());
  if (moves) {
    const ibv_qp_state before = state_.exchange(to);
    entered(before, to);
  }
  return 0;
}

} // namespace adverb::model
