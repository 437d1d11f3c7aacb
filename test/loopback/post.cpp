// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// ibv_post_send, ibv_post_recv, ibv_bind_mw.
#include "engine.h"

#include <cerrno>
#include <cstring>

namespace adverb::loopback {

namespace {

bool known_opcode(uint32_t opcode) {
  switch (opcode) {
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
  case IBV_WR_SEND:
  case IBV_WR_SEND_WITH_IMM:
  case IBV_WR_RDMA_READ:
  case IBV_WR_ATOMIC_CMP_AND_SWP:
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
  case IBV_WR_LOCAL_INV:
  case IBV_WR_BIND_MW:
  case IBV_WR_SEND_WITH_INV:
    return true;
  default:
    return false;
  }
}

bool may_inline(uint32_t opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
         opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}

int fill_target(Qp& qp, const ibv_send_wr& wr, SendWqe& wqe) {
  if (qp.base()->qp_type == IBV_QPT_UD) {
    if (wr.wr.ud.ah == nullptr)
      return EINVAL;
    wqe.dgid = as<Ah>(wr.wr.ud.ah)->attr.grh.dgid;
    wqe.remote_qpn = wr.wr.ud.remote_qpn;
    wqe.remote_qkey = wr.wr.ud.remote_qkey;
    return 0;
  }
  if (wr.opcode == IBV_WR_BIND_MW) {
    if (wr.bind_mw.mw == nullptr || wr.bind_mw.mw->type != IBV_MW_TYPE_2)
      return EINVAL;
    wqe.window = as<Mw>(wr.bind_mw.mw);
    wqe.bind = wr.bind_mw.bind_info;
    wqe.bind_key = wr.bind_mw.rkey;
    return 0;
  }
  if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wqe.remote_addr = wr.wr.atomic.remote_addr;
    wqe.rkey = wr.wr.atomic.rkey;
    wqe.compare_add = wr.wr.atomic.compare_add;
    wqe.swap = wr.wr.atomic.swap;
    return 0;
  }
  wqe.remote_addr = wr.wr.rdma.remote_addr;
  wqe.rkey = wr.wr.rdma.rkey;
  return 0;
}

int fill_data(Qp& qp, const ibv_send_wr& wr, uint64_t position, SendWqe& wqe) {
  wqe.is_inline = (wr.send_flags & IBV_SEND_INLINE) != 0 && may_inline(wr.opcode);
  uint64_t length = 0;
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& sge = wr.sg_list[i];
    if (wqe.is_inline) {
      if (length + sge.length > qp.cap.max_inline_data)
        return EINVAL;
      memcpy(qp.inline_of(position) + length, reinterpret_cast<const void*>(sge.addr), sge.length);
    } else {
      wqe.sge[i] = sge;
    }
    length += sge.length;
  }
  if (length > UINT32_MAX)
    return EINVAL;
  wqe.num_sge = static_cast<uint32_t>(wr.num_sge);
  wqe.length = static_cast<uint32_t>(length);
  return 0;
}

int append_send(Qp& qp, const ibv_send_wr& wr) {
  if (!known_opcode(wr.opcode) || wr.num_sge < 0 ||
      static_cast<uint32_t>(wr.num_sge) > qp.cap.max_send_sge)
    return EINVAL;
  const uint64_t tail = qp.tail.load(std::memory_order_relaxed);
  if (tail - qp.head.load(std::memory_order_acquire) >= qp.cap.max_send_wr)
    return ENOMEM;
  SendWqe& wqe = qp.wqe(tail);
  wqe.wr_id = wr.wr_id;
  wqe.opcode = wr.opcode;
  wqe.flags = wr.send_flags;
  wqe.imm_data = wr.imm_data;
  wqe.faulted = wqe.moved = false;
  if (const int error = fill_target(qp, wr, wqe); error != 0)
    return error;
  if (const int error = fill_data(qp, wr, tail, wqe); error != 0)
    return error;
  qp.tail.store(tail + 1, std::memory_order_seq_cst);
  return 0;
}

bool may_post_send(const Qp& qp) {
  const uint32_t state = qp.slot->state.load(std::memory_order_acquire);
  return state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_SQE ||
         state == IBV_QPS_ERR;
}

} // namespace

int post_send(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad) {
  auto* qp = as<Qp>(base);
  int error = 0;
  {
    std::lock_guard lock(qp->post_mutex);
    if (!may_post_send(*qp))
      error = EINVAL;
    for (; wr != nullptr && error == 0; wr = wr->next)
      if (error = append_send(*qp, *wr); error != 0)
        break;
  }
  if (error != 0)
    *bad = wr;
  kick(*qp, inline_bytes());
  return error;
}

int post_recv(ibv_qp* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  auto* qp = as<Qp>(base);
  int error = 0;
  {
    std::lock_guard lock(qp->recv_mutex);
    if (base->srq != nullptr || qp->slot->state.load() == IBV_QPS_RESET)
      error = EINVAL;
    for (; wr != nullptr && error == 0; wr = wr->next)
      if (error = append_recv(*qp->process, *qp->queue, qp->cap.max_recv_sge, *wr); error != 0)
        break;
  }
  if (error != 0)
    *bad = wr;
  if (qp->slot->state.load(std::memory_order_seq_cst) == IBV_QPS_ERR)
    kick(*qp, 0); // flush what was just posted
  return error;
}

// Type 1 windows: a work request with a new key, which the window holds at once.
int bind_mw(ibv_qp* base, ibv_mw* mw, ibv_mw_bind* bind) {
  auto* qp = as<Qp>(base);
  if (mw->type != IBV_MW_TYPE_1 || mw->pd != base->pd)
    return EINVAL;
  if (bind->bind_info.length != 0 && bind->bind_info.mr == nullptr)
    return EINVAL;
  {
    std::lock_guard lock(qp->post_mutex);
    if (!may_post_send(*qp))
      return EINVAL;
    const uint64_t tail = qp->tail.load(std::memory_order_relaxed);
    if (tail - qp->head.load(std::memory_order_acquire) >= qp->cap.max_send_wr)
      return ENOMEM;
    SendWqe& wqe = qp->wqe(tail);
    wqe = {};
    wqe.wr_id = bind->wr_id;
    wqe.opcode = IBV_WR_BIND_MW;
    wqe.flags = bind->send_flags;
    wqe.window = as<Mw>(mw);
    wqe.bind = bind->bind_info;
    wqe.bind_key = (mw->rkey & ~0xffu) | ((mw->rkey + 1) & 0xff);
    mw->rkey = wqe.bind_key;
    qp->tail.store(tail + 1, std::memory_order_seq_cst);
  }
  kick(*qp, inline_bytes());
  return 0;
}

} // namespace adverb::loopback
