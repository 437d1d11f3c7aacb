// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The ibv_wr_* builders: between wr_start and wr_complete requests gather behind the tail of
// the send queue, under its lock, and are shown to the engine all at once.
#include "engine.h"

#include <cerrno>
#include <cstring>

namespace adverb::loopback {

namespace {

Qp& qp_of(ibv_qp_ex* base) {
  return *as<Qp>(base);
}

// The slot of the request being built; a spare one once the batch has failed.
SendWqe& building(Qp& qp) {
  thread_local SendWqe spare;
  if (qp.staged_error != 0 || qp.staged == 0)
    return spare;
  return qp.wqe(qp.tail.load(std::memory_order_relaxed) + qp.staged - 1);
}

SendWqe& open_request(ibv_qp_ex* base, ibv_wr_opcode opcode) {
  Qp& qp = qp_of(base);
  const uint64_t tail = qp.tail.load(std::memory_order_relaxed);
  if (qp.staged_error == 0 &&
      tail + qp.staged - qp.head.load(std::memory_order_acquire) >= qp.cap.max_send_wr)
    qp.staged_error = ENOMEM;
  if (qp.staged_error == 0)
    ++qp.staged;
  SendWqe& wqe = building(qp);
  wqe.wr_id = base->wr_id;
  wqe.flags = base->wr_flags;
  wqe.opcode = opcode;
  wqe.imm_data = 0;
  wqe.length = wqe.num_sge = 0;
  wqe.is_inline = wqe.faulted = wqe.moved = false;
  return wqe;
}

void open_rdma(ibv_qp_ex* base, ibv_wr_opcode opcode, uint32_t rkey, uint64_t address) {
  SendWqe& wqe = open_request(base, opcode);
  wqe.rkey = rkey;
  wqe.remote_addr = address;
}

void wr_rdma_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t address) {
  open_rdma(qp, IBV_WR_RDMA_WRITE, rkey, address);
}
void wr_rdma_write_imm(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, __be32 imm) {
  open_rdma(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address);
  building(qp_of(qp)).imm_data = imm;
}
void wr_rdma_read(ibv_qp_ex* qp, uint32_t rkey, uint64_t address) {
  open_rdma(qp, IBV_WR_RDMA_READ, rkey, address);
}
void wr_atomic_cmp_swp(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, uint64_t compare,
                       uint64_t swap) {
  open_rdma(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, address);
  building(qp_of(qp)).compare_add = compare;
  building(qp_of(qp)).swap = swap;
}
void wr_atomic_fetch_add(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, uint64_t add) {
  open_rdma(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, address);
  building(qp_of(qp)).compare_add = add;
}
void wr_send(ibv_qp_ex* qp) {
  open_request(qp, IBV_WR_SEND);
}
void wr_send_imm(ibv_qp_ex* qp, __be32 imm) {
  open_request(qp, IBV_WR_SEND_WITH_IMM).imm_data = imm;
}
void wr_send_inv(ibv_qp_ex* qp, uint32_t rkey) {
  open_request(qp, IBV_WR_SEND_WITH_INV).imm_data = rkey;
}
void wr_local_inv(ibv_qp_ex* qp, uint32_t rkey) {
  open_request(qp, IBV_WR_LOCAL_INV).imm_data = rkey;
}
void wr_bind_mw(ibv_qp_ex* qp, ibv_mw* mw, uint32_t rkey, const ibv_mw_bind_info* info) {
  SendWqe& wqe = open_request(qp, IBV_WR_BIND_MW);
  wqe.window = as<Mw>(mw);
  wqe.bind = *info;
  wqe.bind_key = rkey;
}

void wr_set_ud_addr(ibv_qp_ex* qp, ibv_ah* ah, uint32_t qpn, uint32_t qkey) {
  SendWqe& wqe = building(qp_of(qp));
  wqe.dgid = as<Ah>(ah)->attr.grh.dgid;
  wqe.remote_qpn = qpn;
  wqe.remote_qkey = qkey;
}

void wr_set_sge_list(ibv_qp_ex* base, size_t count, const ibv_sge* list) {
  Qp& qp = qp_of(base);
  if (count > qp.cap.max_send_sge) {
    qp.staged_error = EINVAL;
    return;
  }
  SendWqe& wqe = building(qp);
  wqe.length = 0;
  wqe.num_sge = static_cast<uint32_t>(count);
  for (size_t i = 0; i < count; ++i) {
    wqe.sge[i] = list[i];
    wqe.length += list[i].length;
  }
}

void wr_set_sge(ibv_qp_ex* qp, uint32_t lkey, uint64_t address, uint32_t length) {
  const ibv_sge sge = {address, length, lkey};
  wr_set_sge_list(qp, 1, &sge);
}

void wr_set_inline_data_list(ibv_qp_ex* base, size_t count, const ibv_data_buf* list) {
  Qp& qp = qp_of(base);
  SendWqe& wqe = building(qp);
  size_t length = 0;
  for (size_t i = 0; i < count; ++i) {
    if (length + list[i].length > qp.cap.max_inline_data)
      qp.staged_error = EINVAL;
    if (qp.staged_error != 0)
      return;
    memcpy(qp.inline_of(qp.tail.load(std::memory_order_relaxed) + qp.staged - 1) + length,
           list[i].addr, list[i].length);
    length += list[i].length;
  }
  wqe.is_inline = true;
  wqe.length = static_cast<uint32_t>(length);
}

void wr_set_inline_data(ibv_qp_ex* qp, void* address, size_t length) {
  const ibv_data_buf buffer = {address, length};
  wr_set_inline_data_list(qp, 1, &buffer);
}

void wr_start(ibv_qp_ex* base) {
  Qp& qp = qp_of(base);
  qp.post_mutex.lock();
  qp.staged = 0;
  qp.staged_error = 0;
}

int wr_complete(ibv_qp_ex* base) {
  Qp& qp = qp_of(base);
  int error = qp.staged_error;
  const uint32_t state = qp.slot->state.load(std::memory_order_acquire);
  if (error == 0 && (state == IBV_QPS_RESET || state == IBV_QPS_INIT || state == IBV_QPS_RTR))
    error = EINVAL;
  if (error == 0)
    qp.tail.store(qp.tail.load(std::memory_order_relaxed) + qp.staged, std::memory_order_seq_cst);
  qp.staged = 0;
  qp.post_mutex.unlock();
  kick(qp, inline_bytes());
  return error;
}

void wr_abort(ibv_qp_ex* base) {
  Qp& qp = qp_of(base);
  qp.staged = 0;
  qp.post_mutex.unlock();
}

template <typename F> void install(uint64_t ops, uint64_t op, F& slot, F function) {
  if ((ops & op) != 0)
    slot = function;
}

} // namespace

void install_extended_send(Qp& qp) {
  ibv_qp_ex& ex = qp.ex;
  const uint64_t ops = qp.send_ops;
  install(ops, IBV_QP_EX_WITH_RDMA_WRITE, ex.wr_rdma_write, &wr_rdma_write);
  install(ops, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, ex.wr_rdma_write_imm, &wr_rdma_write_imm);
  install(ops, IBV_QP_EX_WITH_RDMA_READ, ex.wr_rdma_read, &wr_rdma_read);
  install(ops, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, ex.wr_atomic_cmp_swp, &wr_atomic_cmp_swp);
  install(ops, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, ex.wr_atomic_fetch_add, &wr_atomic_fetch_add);
  install(ops, IBV_QP_EX_WITH_SEND, ex.wr_send, &wr_send);
  install(ops, IBV_QP_EX_WITH_SEND_WITH_IMM, ex.wr_send_imm, &wr_send_imm);
  install(ops, IBV_QP_EX_WITH_SEND_WITH_INV, ex.wr_send_inv, &wr_send_inv);
  install(ops, IBV_QP_EX_WITH_LOCAL_INV, ex.wr_local_inv, &wr_local_inv);
  install(ops, IBV_QP_EX_WITH_BIND_MW, ex.wr_bind_mw, &wr_bind_mw);
  ex.wr_set_ud_addr = wr_set_ud_addr;
  ex.wr_set_sge = wr_set_sge;
  ex.wr_set_sge_list = wr_set_sge_list;
  ex.wr_set_inline_data = wr_set_inline_data;
  ex.wr_set_inline_data_list = wr_set_inline_data_list;
  ex.wr_start = wr_start;
  ex.wr_complete = wr_complete;
  ex.wr_abort = wr_abort;
}

} // namespace adverb::loopback
