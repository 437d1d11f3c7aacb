// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The extended posts (ibv_wr_*): each call adds to a list of plain work requests that wr_complete()
// posts as one, so both ways of posting walk the same path.
#include "model/context.h"
#include "model/qp.h"
#include "model/verbs.h"
#include "world/world.h"

#include <cerrno>

namespace adverb::model {

namespace {

ibv_send_wr& next(Qp& mine, const ibv_qp_ex* qp, ibv_wr_opcode opcode) {
  Qp::Built& built = mine.build();
  built.wr.wr_id = qp->wr_id;
  built.wr.send_flags = qp->wr_flags;
  built.wr.opcode = opcode;
  return built.wr;
}

// The request the setters talk about; none if the program calls one before any request.
Qp::Built* current(Qp& mine) {
  Qp::Built* const last = mine.built_last();
  if (last == nullptr)
    mine.build_failed(EINVAL);
  return last;
}

} // namespace

void wr_start(Qp& mine, ibv_qp_ex*) {
  mine.begin();
}
int wr_complete(Qp& mine, ibv_qp_ex*) {
  try {
    return mine.commit();
  } catch (...) {
    mine.abort(); // else the queue pair would stay locked for ever
    throw;
  }
}
void wr_abort(Qp& mine, ibv_qp_ex*) {
  mine.abort();
}
void wr_failed(Qp& mine, int error) noexcept {
  mine.build_failed(error);
}

void wr_rdma_write(Qp& mine, ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr) {
  next(mine, qp, IBV_WR_RDMA_WRITE).wr.rdma = {remote_addr, rkey};
}
void wr_rdma_write_imm(Qp& mine, ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr,
                       __be32 imm_data) {
  auto& wr = next(mine, qp, IBV_WR_RDMA_WRITE_WITH_IMM);
  wr.wr.rdma = {remote_addr, rkey};
  wr.imm_data = imm_data;
}
void wr_rdma_read(Qp& mine, ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr) {
  next(mine, qp, IBV_WR_RDMA_READ).wr.rdma = {remote_addr, rkey};
}
void wr_atomic_cmp_swp(Qp& mine, ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr,
                       uint64_t compare, uint64_t swap) {
  next(mine, qp, IBV_WR_ATOMIC_CMP_AND_SWP).wr.atomic = {remote_addr, compare, swap, rkey};
}
void wr_atomic_fetch_add(Qp& mine, ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr,
                         uint64_t add) {
  next(mine, qp, IBV_WR_ATOMIC_FETCH_AND_ADD).wr.atomic = {remote_addr, add, 0, rkey};
}
// There is no plain work request for it, and the responder's CPU must not imitate the device's
// atomicity; said at wr_complete().
void wr_atomic_write(Qp& mine, ibv_qp_ex*, uint32_t, uint64_t, const void*) {
  if (mine.world().log.once("atomic-write"))
    mine.world().log.error(
        "ATOMIC_WRITE is refused on queue pairs that may reach unpinned regions; set "
        "\"peers\": \"none\" and pin the regions of this program by policy to use it");
  mine.build_failed(EOPNOTSUPP);
}
void wr_flush(Qp& mine, ibv_qp_ex*, uint32_t, uint64_t, size_t, uint8_t, uint8_t) {
  if (mine.world().log.once("flush"))
    mine.world().log.error(
        "FLUSH is refused on queue pairs that may reach unpinned regions; set "
        "\"peers\": \"none\" and pin the regions of this program by policy to use it");
  mine.build_failed(EOPNOTSUPP);
}
void wr_send(Qp& mine, ibv_qp_ex* qp) {
  next(mine, qp, IBV_WR_SEND);
}
void wr_send_imm(Qp& mine, ibv_qp_ex* qp, __be32 imm_data) {
  next(mine, qp, IBV_WR_SEND_WITH_IMM).imm_data = imm_data;
}
void wr_send_inv(Qp& mine, ibv_qp_ex* qp, uint32_t rkey) {
  next(mine, qp, IBV_WR_SEND_WITH_INV).invalidate_rkey = rkey;
}
void wr_local_inv(Qp& mine, ibv_qp_ex* qp, uint32_t rkey) {
  next(mine, qp, IBV_WR_LOCAL_INV).invalidate_rkey = rkey;
}
void wr_bind_mw(Qp& mine, ibv_qp_ex* qp, ibv_mw* mw, uint32_t rkey, const ibv_mw_bind_info* info) {
  next(mine, qp, IBV_WR_BIND_MW).bind_mw = {mw, rkey, *info};
}
void wr_send_tso(Qp& mine, ibv_qp_ex* qp, void* header, uint16_t header_bytes, uint16_t mss) {
  next(mine, qp, IBV_WR_TSO).tso = {header, header_bytes, mss};
}

void wr_set_ud_addr(Qp& mine, ibv_qp_ex*, ibv_ah* ah, uint32_t remote_qpn, uint32_t remote_qkey) {
  if (auto* built = current(mine))
    built->wr.wr.ud = {ah, remote_qpn, remote_qkey};
}
void wr_set_xrc_srqn(Qp& mine, ibv_qp_ex*, uint32_t remote_srqn) {
  if (auto* built = current(mine))
    built->wr.qp_type.xrc.remote_srqn = remote_srqn;
}
void wr_set_sge(Qp& mine, ibv_qp_ex*, uint32_t lkey, uint64_t addr, uint32_t length) {
  if (auto* built = current(mine))
    built->sges.assign(1, {addr, length, lkey});
}
void wr_set_sge_list(Qp& mine, ibv_qp_ex*, size_t count, const ibv_sge* list) {
  if (auto* built = current(mine))
    built->sges.assign(list, list + count);
}
void wr_set_inline_data(Qp& mine, ibv_qp_ex* qp, void* addr, size_t length) {
  const ibv_data_buf one{addr, length};
  wr_set_inline_data_list(mine, qp, 1, &one);
}
void wr_set_inline_data_list(Qp& mine, ibv_qp_ex*, size_t count, const ibv_data_buf* list) {
  auto* built = current(mine);
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
