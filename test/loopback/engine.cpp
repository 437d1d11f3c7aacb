// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Running a send queue: order, blocking, retries, and what each outcome does to the QP.
#include "transport.h"

namespace adverb::loopback {

namespace {

constexpr uint64_t kRetryCap = 10000000000u; // the longest wait for a silent peer
constexpr uint64_t kRetryPoll = 1000000u;    // how often a silent peer is tried again

// The RNR timer field to ns (InfiniBand specification, table 45).
uint64_t rnr_ns(uint32_t timer) {
  static constexpr uint32_t hundredths_ms[32] = {
      65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
      48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
      2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return uint64_t{hundredths_ms[timer & 31]} * 10000u;
}

uint64_t retransmit_ns(const Qp& qp) {
  return qp.attr.timeout == 0 ? UINT64_MAX : uint64_t{4096} << (qp.attr.timeout & 31);
}

uint32_t completion_opcode(uint32_t opcode) {
  switch (opcode) {
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    return IBV_WC_RDMA_WRITE;
  case IBV_WR_RDMA_READ:
    return IBV_WC_RDMA_READ;
  case IBV_WR_ATOMIC_CMP_AND_SWP:
    return IBV_WC_COMP_SWAP;
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    return IBV_WC_FETCH_ADD;
  case IBV_WR_BIND_MW:
    return IBV_WC_BIND_MW;
  case IBV_WR_LOCAL_INV:
    return IBV_WC_LOCAL_INV;
  default:
    return IBV_WC_SEND;
  }
}

// The head of the queue is over. Its place is free before its completion can be seen: who polls a
// completion may post one more at once, as a driver that frees the place as it polls allows.
void retire(Qp& qp, uint64_t position, ibv_wc_status status) {
  const SendWqe& wqe = qp.wqe(position);
  const bool silent =
      status == IBV_WC_SUCCESS && !qp.signal_all && (wqe.flags & IBV_SEND_SIGNALED) == 0;
  Completion completion = {};
  completion.wr_id = wqe.wr_id;
  completion.status = status;
  completion.opcode = completion_opcode(wqe.opcode);
  completion.byte_len = wqe.length;
  completion.qp_num = qp.base()->qp_num;
  const bool atomic =
      wqe.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wqe.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  if (atomic)
    completion.byte_len = 8;
  qp.head.store(position + 1, std::memory_order_release); // wqe may be another's from here on
  if (silent)
    return;
  auto* cq = as<Cq>(qp.base()->send_cq);
  push_completion(*qp.process, qp.process->index(), qp.process->at<char>(0), cq->offset,
                  completion);
}

void forget_retries(Qp& qp) {
  qp.blocked_until = 0;
  qp.give_up_at = 0;
  qp.rnr_counting = false;
}

// The peer said nothing. Waits until the QP's timers are through.
ibv_wc_status no_answer(Qp& qp) {
  const uint64_t now = now_ns();
  if (qp.give_up_at == 0) {
    const uint64_t once = retransmit_ns(qp);
    const uint64_t all =
        once == UINT64_MAX ? once : std::min(once * (qp.attr.retry_cnt + 1u), kRetryCap);
    qp.give_up_at = all == UINT64_MAX ? all : now + all;
  }
  if (now >= qp.give_up_at)
    return IBV_WC_RETRY_EXC_ERR;
  qp.blocked_until = std::min(now + kRetryPoll, qp.give_up_at);
  return IBV_WC_SUCCESS;
}

// The peer had no receive posted.
ibv_wc_status not_ready(Qp& qp, uint32_t timer) {
  if (!qp.rnr_counting) {
    qp.rnr_counting = true;
    qp.rnr_left = qp.attr.rnr_retry;
  }
  if (qp.attr.rnr_retry != 7) {
    if (qp.rnr_left == 0)
      return IBV_WC_RNR_RETRY_EXC_ERR;
    --qp.rnr_left;
  }
  qp.blocked_until = now_ns() + rnr_ns(timer);
  return IBV_WC_SUCCESS;
}

// Carries out the head of the queue. True when it is over, with its status; false when it must
// wait until qp.blocked_until.
bool carry_out(Qp& qp, uint64_t position, ibv_wc_status& status) {
  SendWqe& wqe = qp.wqe(position);
  status = IBV_WC_SUCCESS;
  if (!wqe.faulted) {
    wqe.faulted = true;
    const Fault fault = draw_fault(retransmit_ns(qp));
    if (fault.status != IBV_WC_SUCCESS) {
      status = fault.status;
      return true;
    }
    if (fault.delay != 0) {
      qp.blocked_until = now_ns() + fault.delay;
      return false;
    }
  }
  const bool more = position + 1 != qp.tail.load(std::memory_order_acquire);
  if (more && wqe.opcode == IBV_WR_RDMA_READ && draw_reorder())
    fetch_early(qp, position + 1);
  const Answer answer = transport(qp, position);
  if (answer.kind == Answer::silent) {
    status = no_answer(qp);
    return status != IBV_WC_SUCCESS;
  }
  if (answer.kind == Answer::not_ready) {
    status = not_ready(qp, answer.rnr_timer);
    return status != IBV_WC_SUCCESS;
  }
  status = answer.status;
  return true;
}

} // namespace

void flush_qp(Qp& qp) {
  Process& process = *qp.process;
  for (uint64_t at = qp.head.load(); at != qp.tail.load(std::memory_order_acquire); ++at)
    retire(qp, at, IBV_WC_WR_FLUSH_ERR);
  Completion completion = {};
  completion.status = IBV_WC_WR_FLUSH_ERR;
  completion.opcode = IBV_WC_RECV;
  completion.qp_num = qp.base()->qp_num;
  auto* cq = as<Cq>(qp.base()->recv_cq);
  auto push = [&](uint64_t wr_id) {
    completion.wr_id = wr_id;
    push_completion(process, process.index(), process.at<char>(0), cq->offset, completion);
  };
  // A peer that died, or failed, while it filled a receive has left it here.
  if (qp.slot->receiving.exchange(0) != 0)
    push(qp.slot->current.wr_id);
  if (qp.base()->srq != nullptr || qp.queue == nullptr)
    return;
  RobustLock lock(qp.queue->consumer);
  auto* wqes = process.at<RecvWqe>(qp.queue->wqes);
  for (uint64_t at = qp.queue->head.load(); at != qp.queue->tail.load(std::memory_order_acquire);
       ++at) {
    const uint64_t wr_id = wqes[at % qp.queue->max_wr].wr_id;
    qp.queue->head.store(at + 1, std::memory_order_release);
    push(wr_id);
  }
}

void enter_error(Qp& qp) {
  qp.slot->state.store(IBV_QPS_ERR, std::memory_order_seq_cst);
  // ibv_qp's own state follows at the program's next call, as in rdma-core.
  qp.attr.qp_state = IBV_QPS_ERR;
  if (!qp.in_error) {
    qp.in_error = true;
    qp.process->synchronize(); // nobody fills a receive any more
    if (qp.base()->srq != nullptr)
      raise_async(qp.base()->context, IBV_EVENT_QP_LAST_WQE_REACHED, &qp);
  }
  flush_qp(qp);
}

uint64_t run_send_queue(Qp& qp, uint64_t budget, bool wait) {
  uint64_t moved = 0;
  for (;;) {
    std::unique_lock lock(qp.exec_mutex, std::defer_lock);
    if (wait)
      lock.lock();
    else if (!lock.try_lock())
      return UINT64_MAX; // whoever holds it looks at the queue again before it is done
    for (;;) {
      const uint32_t state = qp.slot->state.load(std::memory_order_acquire);
      if (state == IBV_QPS_ERR) {
        enter_error(qp);
        break;
      }
      const uint64_t position = qp.head.load(std::memory_order_relaxed);
      if (state != IBV_QPS_RTS || position == qp.tail.load(std::memory_order_seq_cst))
        break;
      if (qp.blocked_until != 0 && now_ns() < qp.blocked_until)
        return qp.blocked_until;
      SendWqe& wqe = qp.wqe(position);
      if (moved != 0 && moved + wqe.length > budget)
        return 0;
      if (moved == 0 && wqe.length > budget)
        return 0;
      moved += wqe.length;
      ibv_wc_status status;
      if (!carry_out(qp, position, status))
        return qp.blocked_until;
      forget_retries(qp);
      retire(qp, position, status);
      if (status != IBV_WC_SUCCESS)
        enter_error(qp);
    }
    lock.unlock();
    // Work may have been appended by a thread that found the lock taken.
    const uint32_t state = qp.slot->state.load();
    if (qp.head.load() == qp.tail.load() || (state != IBV_QPS_RTS && state != IBV_QPS_ERR))
      return UINT64_MAX;
  }
}

void kick(Qp& qp, uint64_t budget) {
  if (run_send_queue(qp, budget, false) != UINT64_MAX)
    qp.process->schedule(qp);
}

} // namespace adverb::loopback
