// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The extended posts (ibv_wr_*): each call adds to a list of plain work requests that wr_complete()
// posts as one, so both ways of posting walk the same path.
#include "model/context.h"
#include "model/qp.h"
#include "model/verbs.h"
#include "observe/log.h"

#include <cerrno>

namespace adverb::model {

namespace {

Qp& of(ibv_qp_ex* qp) {
  return *Objects::get().qps.find(&qp->qp_base);
}

ibv_send_wr& next(ibv_qp_ex* qp, ibv_wr_opcode opcode) {
  Qp::Built& built = of(qp).building().emplace_back();
  built.wr.wr_id = qp->wr_id;
  built.wr.send_flags = qp->wr_flags;
  built.wr.opcode = opcode;
  return built.wr;
}

// The request the setters talk about; none if the program calls one before any request.
Qp::Built* current(ibv_qp_ex* qp) {
  auto& list = of(qp).building();
  if (list.empty()) {
    of(qp).build_failed(EINVAL);
    return nullptr;
  }
  return &list.back();
}

} // namespace

void wr_start(ibv_qp_ex* qp) {
  of(qp).begin();
}
int wr_complete(ibv_qp_ex* qp) {
  return of(qp).commit();
}
void wr_abort(ibv_qp_ex* qp) {
  of(qp).abort();
}

void wr_rdma_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr) {
  next(qp, IBV_WR_RDMA_WRITE).wr.rdma = {remote_addr, rkey};
}
void wr_rdma_write_imm(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, __be32 imm_data) {
  auto& wr = next(qp, IBV_WR_RDMA_WRITE_WITH_IMM);
  wr.wr.rdma = {remote_addr, rkey};
  wr.imm_data = imm_data;
}
void wr_rdma_read(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr) {
  next(qp, IBV_WR_RDMA_READ).wr.rdma = {remote_addr, rkey};
}
void wr_atomic_cmp_swp(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, uint64_t compare,
                       uint64_t swap) {
  next(qp, IBV_WR_ATOMIC_CMP_AND_SWP).wr.atomic = {remote_addr, compare, swap, rkey};
}
void wr_atomic_fetch_add(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, uint64_t add) {
  next(qp, IBV_WR_ATOMIC_FETCH_AND_ADD).wr.atomic = {remote_addr, add, 0, rkey};
}
// There is no plain work request for it, and the responder's CPU must not imitate the device's
// atomicity; said at wr_complete().
void wr_atomic_write(ibv_qp_ex* qp, uint32_t, uint64_t, const void*) {
  if (observe::log_once("atomic-write"))
    observe::log_error(
        "ATOMIC_WRITE is refused on queue pairs that may reach unpinned regions; set "
        "\"peers\": \"none\" and pin the regions of this program by policy to use it");
  of(qp).build_failed(EOPNOTSUPP);
}
void wr_flush(ibv_qp_ex* qp, uint32_t, uint64_t, size_t, uint8_t, uint8_t) {
  if (observe::log_once("flush"))
    observe::log_error(
        "FLUSH is refused on queue pairs that may reach unpinned regions; set "
        "\"peers\": \"none\" and pin the regions of this program by policy to use it");
  of(qp).build_failed(EOPNOTSUPP);
}
void wr_send(ibv_qp_ex* qp) {
  next(qp, IBV_WR_SEND);
}
void wr_send_imm(ibv_qp_ex* qp, __be32 imm_data) {
  next(qp, IBV_WR_SEND_WITH_IMM).imm_data = imm_data;
}
void wr_send_inv(ibv_qp_ex* qp, uint32_t rkey) {
  next(qp, IBV_WR_SEND_WITH_INV).invalidate_rkey = rkey;
}
void wr_local_inv(ibv_qp_ex* qp, uint32_t rkey) {
  next(qp, IBV_WR_LOCAL_INV).invalidate_rkey = rkey;
}
void wr_bind_mw(ibv_qp_ex* qp, ibv_mw* mw, uint32_t rkey, const ibv_mw_bind_info* info) {
  next(qp, IBV_WR_BIND_MW).bind_mw = {mw, rkey, *info};
}
void wr_send_tso(ibv_qp_ex* qp, void* header, uint16_t header_bytes, uint16_t mss) {
  next(qp, IBV_WR_TSO).tso = {header, header_bytes, mss};
}

void wr_set_ud_addr(ibv_qp_ex* qp, ibv_ah* ah, uint32_t remote_qpn, uint32_t remote_qkey) {
  if (auto* built = current(qp))
    built->wr.wr.ud = {ah, remote_qpn, remote_qkey};
}
void wr_set_xrc_srqn(ibv_qp_ex* qp, uint32_t remote_srqn) {
  if (auto* built = current(qp))
    built->wr.qp_type.xrc.remote_srqn = remote_srqn;
}
void wr_set_sge(ibv_qp_ex* qp, uint32_t lkey, uint64_t addr, uint32_t length) {
  if (auto* built = current(qp))
    built->sges.assign(1, {addr, length, lkey});
}
void wr_set_sge_list(ibv_qp_ex* qp, size_t count, const ibv_sge* list) {
  if (auto* built = current(qp))
    built->sges.assign(list, list + count);
}
void wr_set_inline_data(ibv_qp_ex* qp, void* addr, size_t length) {
  const ibv_data_buf one{addr, length};
  wr_set_inline_data_list(qp, 1, &one);
}
void wr_set_inline_data_list(ibv_qp_ex* qp, size_t count, const ibv_data_buf* list) {
  auto* built = current(qp);
  if (built == nullptr)
    return;
  built->inlined.clear();
  for (size_t i = 0; i < count; ++i) {
    const auto* from = static_cast<const std::byte*>(list[i].addr);
    built->inlined.insert(built->inlined.end(), from, from + list[i].length);
  }
  built->wr.send_flags |= IBV_SEND_INLINE;
}

} // namespace adverb::model
