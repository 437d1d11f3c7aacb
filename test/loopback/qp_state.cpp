// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The QP state machine: which attributes each transition needs and allows (InfiniBand
// specification, 11.2.5.2), and what each state does to the queues.
#include "engine.h"
#include "events.h"

#include <cerrno>

namespace adverb::loopback {

namespace {

struct Transition {
  ibv_qp_state from, to;
  int required[3]; // RC, UC, UD
  int optional[3];
};

constexpr int kAlt = IBV_QP_ALT_PATH, kMig = IBV_QP_PATH_MIG_STATE, kCur = IBV_QP_CUR_STATE;
constexpr int kAccess = IBV_QP_ACCESS_FLAGS, kPkey = IBV_QP_PKEY_INDEX, kQkey = IBV_QP_QKEY;
constexpr int kRnr = IBV_QP_MIN_RNR_TIMER, kPort = IBV_QP_PORT;
constexpr int kConnect = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr int kTimers = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;

constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET,
     IBV_QPS_INIT,
     {kPkey | kPort | kAccess, kPkey | kPort | kAccess, kPkey | kPort | kQkey},
     {0, 0, 0}},
    {IBV_QPS_INIT,
     IBV_QPS_INIT,
     {0, 0, 0},
     {kPkey | kPort | kAccess, kPkey | kPort | kAccess, kPkey | kPort | kQkey}},
    {IBV_QPS_INIT,
     IBV_QPS_RTR,
     {kConnect | IBV_QP_MAX_DEST_RD_ATOMIC | kRnr, kConnect, 0},
     {kAlt | kAccess | kPkey, kAlt | kAccess | kPkey, kPkey | kQkey}},
    {IBV_QPS_RTR,
     IBV_QPS_RTS,
     {kTimers | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_SQ_PSN, IBV_QP_SQ_PSN},
     {kCur | kAlt | kAccess | kRnr | kMig, kCur | kAlt | kAccess | kMig, kCur | kQkey}},
    {IBV_QPS_RTS,
     IBV_QPS_RTS,
     {0, 0, 0},
     {kCur | kAlt | kAccess | kRnr | kMig, kCur | kAlt | kAccess | kMig, kCur | kQkey}},
    {IBV_QPS_RTS,
     IBV_QPS_SQD,
     {0, 0, 0},
     {IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_EN_SQD_ASYNC_NOTIFY}},
    {IBV_QPS_SQD,
     IBV_QPS_RTS,
     {0, 0, 0},
     {kCur | kAlt | kAccess | kRnr | kMig, kCur | kAlt | kAccess | kMig, kCur | kQkey}},
    {IBV_QPS_SQD,
     IBV_QPS_SQD,
     {0, 0, 0},
     {kPort | IBV_QP_AV | kTimers | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | kAlt |
          kAccess | kPkey | kRnr | kMig,
      IBV_QP_AV | kAlt | kAccess | kPkey | kMig, kPkey | kQkey}},
    {IBV_QPS_SQE, IBV_QPS_RTS, {0, 0, 0}, {0, kCur | kAccess, kCur | kQkey}},
};

int type_column(ibv_qp_type type) {
  return type == IBV_QPT_RC ? 0 : type == IBV_QPT_UC ? 1 : 2;
}

bool allowed(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask) {
  mask &= ~IBV_QP_STATE;
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
    return (mask & ~kCur) == 0;
  const int column = type_column(type);
  for (const Transition& row : kTransitions)
    if (row.from == from && row.to == to)
      return (mask & row.required[column]) == row.required[column] &&
             (mask & ~(row.required[column] | row.optional[column])) == 0;
  return false;
}

bool plausible(const ibv_qp_attr& attr, int mask) {
  if ((mask & IBV_QP_PORT) != 0 && attr.port_num != 1)
    return false;
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && attr.pkey_index != 0)
    return false;
  if ((mask & IBV_QP_AV) != 0 && (attr.ah_attr.is_global == 0 || attr.ah_attr.port_num != 1 ||
                                  attr.ah_attr.grh.sgid_index > 1))
    return false; // RoCE: a GRH always
  if ((mask & IBV_QP_PATH_MTU) != 0 &&
      (attr.path_mtu < IBV_MTU_256 || attr.path_mtu > IBV_MTU_4096))
    return false;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && attr.max_rd_atomic > kMaxRdAtomic)
    return false;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 && attr.max_dest_rd_atomic > kMaxRdAtomic)
    return false;
  return (mask & kRnr) == 0 || attr.min_rnr_timer <= 31;
}

// exec_mutex held.
void apply(Qp& qp, const ibv_qp_attr& attr, int mask) {
  QpSlot& slot = *qp.slot;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) {
    qp.attr.qp_access_flags = attr.qp_access_flags;
    slot.access.store(attr.qp_access_flags);
  }
  if ((mask & IBV_QP_QKEY) != 0) {
    qp.attr.qkey = attr.qkey;
    slot.qkey.store(attr.qkey);
  }
  if ((mask & IBV_QP_AV) != 0)
    qp.attr.ah_attr = attr.ah_attr;
  if ((mask & IBV_QP_PATH_MTU) != 0)
    qp.attr.path_mtu = attr.path_mtu;
  if ((mask & IBV_QP_DEST_QPN) != 0) {
    qp.attr.dest_qp_num = attr.dest_qp_num;
    slot.dest.store(attr.dest_qp_num);
  }
  if ((mask & IBV_QP_RQ_PSN) != 0)
    slot.expected_psn.store(attr.rq_psn & 0xffffff);
  if ((mask & IBV_QP_SQ_PSN) != 0)
    qp.next_psn = attr.sq_psn & 0xffffff;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0)
    qp.attr.max_rd_atomic = attr.max_rd_atomic;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) {
    qp.attr.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    slot.max_dest_rd_atomic.store(attr.max_dest_rd_atomic);
  }
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) {
    qp.attr.min_rnr_timer = attr.min_rnr_timer;
    slot.min_rnr_timer.store(attr.min_rnr_timer);
  }
  if ((mask & IBV_QP_TIMEOUT) != 0)
    qp.attr.timeout = attr.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0)
    qp.attr.retry_cnt = attr.retry_cnt & 7;
  if ((mask & IBV_QP_RNR_RETRY) != 0)
    qp.attr.rnr_retry = attr.rnr_retry & 7;
}

// exec_mutex held: nothing lands through this QP any more, both queues are forgotten.
void reset(Qp& qp) {
  qp.slot->state.store(IBV_QPS_RESET, std::memory_order_seq_cst);
  qp.process->synchronize();
  qp.slot->receiving.store(0);
  qp.slot->events.store(0);
  qp.head.store(qp.tail.load());
  if (qp.base()->srq == nullptr) {
    RobustLock lock(qp.queue->consumer);
    qp.queue->head.store(qp.queue->tail.load());
  }
  qp.attr = {};
  qp.in_error = false;
  qp.blocked_until = qp.give_up_at = 0;
  qp.rnr_counting = false;
}

int modify(Qp& qp, const ibv_qp_attr& attr, int mask) {
  std::lock_guard lock(qp.exec_mutex);
  const auto from = static_cast<ibv_qp_state>(qp.slot->state.load());
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attr.qp_state : from;
  if ((mask & IBV_QP_CUR_STATE) != 0 && attr.cur_qp_state != from)
    return EINVAL;
  if (!allowed(qp.base()->qp_type, from, to, mask) || !plausible(attr, mask))
    return EINVAL;
  apply(qp, attr, mask);
  qp.attr.qp_state = to;
  if (to == IBV_QPS_RESET) {
    std::scoped_lock queues(qp.post_mutex, qp.recv_mutex);
    reset(qp);
    clean_cqs_of(qp);
  } else if (to == IBV_QPS_ERR) {
    enter_error(qp);
  } else {
    // A peer may have failed the QP meanwhile; that stands.
    uint32_t expected = from;
    qp.slot->state.compare_exchange_strong(expected, to);
    if (to == IBV_QPS_SQD && from == IBV_QPS_RTS && (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 &&
        attr.en_sqd_async_notify != 0)
      raise_async(qp.base()->context, IBV_EVENT_SQ_DRAINED, &qp);
  }
  qp.base()->state = to;
  return 0;
}

} // namespace

} // namespace adverb::loopback

using namespace adverb::loopback;

extern "C" int ibv_modify_qp(ibv_qp* base, ibv_qp_attr* attr, int mask) {
  auto* qp = as<Qp>(base);
  const int error = modify(*qp, *attr, mask);
  kick(*qp, inline_bytes()); // what was posted while the lock was taken
  return error;
}
