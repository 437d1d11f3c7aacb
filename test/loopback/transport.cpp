// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "transport.h"

#include <cstring>

namespace adverb::loopback {

Origin origin_of(const Qp& qp, const SendWqe& wqe) {
  Origin origin = {};
  origin.process = qp.process;
  origin.type = qp.slot->type;
  origin.qpn = qp.slot->number.load(std::memory_order_relaxed);
  origin.device = qp.slot->device;
  origin.sgid_index = qp.attr.ah_attr.grh.sgid_index;
  if (origin.type != IBV_QPT_UD) {
    origin.dest = qp.attr.dest_qp_num;
    origin.dgid = qp.attr.ah_attr.grh.dgid;
    return origin;
  }
  origin.dest = wqe.remote_qpn;
  origin.dgid = wqe.dgid;
  // The high bit asks for the sending QP's own Q_Key (InfiniBand specification, 10.2.5).
  origin.qkey = (wqe.remote_qkey & 0x80000000u) != 0 ? qp.slot->qkey.load() : wqe.remote_qkey;
  return origin;
}

uint32_t packets(const Qp& qp, const SendWqe& wqe) {
  if (qp.slot->type == IBV_QPT_UD)
    return 1;
  const uint32_t bytes = 128u << qp.attr.path_mtu;
  return std::max<uint32_t>(1, (wqe.length + bytes - 1) / bytes);
}

ibv_wc_status local_ranges(Qp& qp, uint64_t position, uint32_t rights, Ranges& ranges) {
  SendWqe& wqe = qp.wqe(position);
  if (wqe.is_inline) {
    ranges.add(reinterpret_cast<uint64_t>(qp.inline_of(position)), wqe.length);
    return IBV_WC_SUCCESS;
  }
  const QpSlot& slot = *qp.slot;
  const Work work{qp.base()->qp_type, odp_operation(wqe.opcode)};
  for (uint32_t i = 0; i < wqe.num_sge; ++i) {
    const ibv_sge& sge = wqe.sge[i];
    if (sge.length == 0)
      continue;
    uint64_t address = 0;
    if (check_key(*qp.process, qp.process->index(), qp.process->incarnation(), slot.pd, sge.lkey,
                  sge.addr, sge.length, rights, work, qp.base()->qp_num, &address) != Verdict::ok)
      return IBV_WC_LOC_PROT_ERR;
    ranges.add(address, sge.length);
  }
  return IBV_WC_SUCCESS;
}

Reply respond(const Origin& origin, uint32_t owner, SendWqe& wqe, const Ranges& local) {
  Responder responder(origin, origin.process->fabric().qp[qp_index(origin.dest)], owner);
  if (origin.type == IBV_QPT_UD)
    return responder.hears_datagram() ? responder.deliver_datagram(wqe, local) : Reply{Reply::gone};
  return responder.listening(false, 0) ? responder.serve(wqe, local) : Reply{Reply::gone};
}

namespace {

Answer finished(ibv_wc_status status) {
  return {Answer::done, status, 0};
}
Answer silence() {
  return {Answer::silent, IBV_WC_SUCCESS, 0};
}

bool is_read(const SendWqe& wqe) {
  return wqe.opcode == IBV_WR_RDMA_READ;
}
bool is_atomic(const SendWqe& wqe) {
  return wqe.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wqe.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

Answer connected(Qp& qp, uint64_t position) {
  SendWqe& wqe = qp.wqe(position);
  Process& process = *qp.process;
  const bool reliable = qp.base()->qp_type == IBV_QPT_RC;
  QpSlot& target = process.fabric().qp[qp_index(qp.attr.dest_qp_num)];
  const uint32_t owner = target.process.load();
  if (wqe.length > kMaxMessage)
    return finished(IBV_WC_LOC_LEN_ERR);
  if (!reliable && (is_read(wqe) || is_atomic(wqe)))
    return finished(IBV_WC_LOC_QP_OP_ERR);
  if (qp.lane != nullptr)
    return finished(send_over_link(qp, position));

  CriticalSection section(process, owner);
  Ranges local;
  const uint32_t rights = is_read(wqe) || is_atomic(wqe) ? IBV_ACCESS_LOCAL_WRITE : 0;
  if (const ibv_wc_status status = local_ranges(qp, position, rights, local);
      status != IBV_WC_SUCCESS)
    return finished(status);
  if (is_atomic(wqe) && local.bytes < 8)
    return finished(IBV_WC_LOC_LEN_ERR);

  const Origin origin = origin_of(qp, wqe);
  Responder responder(origin, target, owner);
  if (!responder.listening(reliable, qp.next_psn)) {
    if (reliable)
      return silence();
    return finished(IBV_WC_SUCCESS);
  }
  Reply reply = responder.serve(wqe, local);
  if (reply.kind == Reply::acknowledged) {
    const uint32_t count = packets(qp, wqe);
    qp.next_psn = (qp.next_psn + count) & 0xffffff;
    target.expected_psn.store(qp.next_psn);
    return finished(IBV_WC_SUCCESS);
  }
  if (reply.kind == Reply::requester_error)
    return finished(reply.status);
  if (!reliable)
    return finished(IBV_WC_SUCCESS); // dropped: UC has no answers
  switch (reply.kind) {
  case Reply::gone:
    return silence();
  case Reply::rnr:
    return {Answer::not_ready, IBV_WC_SUCCESS, target.min_rnr_timer.load()};
  default:
    return finished(reply.status);
  }
}

Answer datagram(Qp& qp, uint64_t position) {
  SendWqe& wqe = qp.wqe(position);
  Process& process = *qp.process;
  if (wqe.opcode != IBV_WR_SEND && wqe.opcode != IBV_WR_SEND_WITH_IMM)
    return finished(IBV_WC_LOC_QP_OP_ERR);
  if (wqe.length > 4096)
    return finished(IBV_WC_LOC_LEN_ERR);
  if (qp.lane != nullptr)
    return finished(send_over_link(qp, position));
  const uint32_t owner = process.fabric().qp[qp_index(wqe.remote_qpn)].process.load();
  CriticalSection section(process, owner);
  Ranges local;
  if (const ibv_wc_status status = local_ranges(qp, position, 0, local); status != IBV_WC_SUCCESS)
    return finished(status);
  const Reply reply = respond(origin_of(qp, wqe), owner, wqe, local);
  return finished(reply.kind == Reply::requester_error ? reply.status : IBV_WC_SUCCESS);
}

// Type 2 binding and invalidation: local work requests.
Answer local_operation(Qp& qp, SendWqe& wqe) {
  Process& process = *qp.process;
  CriticalSection section(process, process.index());
  if (wqe.opcode == IBV_WR_LOCAL_INV) {
    const uint32_t index = key_index(wqe.imm_data);
    if (index == 0 || index >= kMaxKeys)
      return finished(IBV_WC_LOC_QP_OP_ERR);
    KeySlot& slot = process.fabric().key[index];
    uint32_t expected = wqe.imm_data;
    if (slot.kind.load() != kWindowKey || slot.pd != qp.slot->pd ||
        !slot.key.compare_exchange_strong(expected, 0))
      return finished(IBV_WC_LOC_QP_OP_ERR);
    return finished(IBV_WC_SUCCESS);
  }
  KeySlot& slot = *wqe.window->slot;
  slot.key.store(0, std::memory_order_seq_cst);
  if (wqe.bind.length == 0)
    return finished(IBV_WC_SUCCESS);
  auto* region = as<Mr>(wqe.bind.mr);
  uint64_t address = 0;
  if (check_key(process, process.index(), process.incarnation(), qp.slot->pd, region->mr.lkey,
                wqe.bind.addr, wqe.bind.length, IBV_ACCESS_MW_BIND, {qp.base()->qp_type, 0}, 0,
                &address) != Verdict::ok)
    return finished(IBV_WC_MW_BIND_ERR);
  slot.address = address;
  slot.iova = (wqe.bind.mw_access_flags & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : wqe.bind.addr;
  slot.length = wqe.bind.length;
  slot.access = wqe.bind.mw_access_flags;
  slot.pd = qp.slot->pd;
  slot.window_qp = wqe.window->mw.type == IBV_MW_TYPE_2 ? qp.base()->qp_num : 0;
  slot.key.store(wqe.bind_key, std::memory_order_seq_cst);
  return finished(IBV_WC_SUCCESS);
}

} // namespace

void fetch_early(Qp& qp, uint64_t position) {
  SendWqe& wqe = qp.wqe(position);
  if (wqe.opcode != IBV_WR_RDMA_READ || wqe.moved || (wqe.flags & IBV_SEND_FENCE) != 0)
    return;
  QpSlot& target = qp.process->fabric().qp[qp_index(qp.attr.dest_qp_num)];
  const uint32_t owner = target.process.load();
  CriticalSection section(*qp.process, owner);
  Ranges local;
  const Origin origin = origin_of(qp, wqe);
  Responder responder(origin, target, owner);
  if (local_ranges(qp, position, IBV_ACCESS_LOCAL_WRITE, local) == IBV_WC_SUCCESS &&
      responder.listening(true, qp.next_psn))
    wqe.moved = responder.peek(wqe, local);
}

Answer transport(Qp& qp, uint64_t position) {
  SendWqe& wqe = qp.wqe(position);
  if (wqe.opcode == IBV_WR_LOCAL_INV || wqe.opcode == IBV_WR_BIND_MW)
    return local_operation(qp, wqe);
  return qp.base()->qp_type == IBV_QPT_UD ? datagram(qp, position) : connected(qp, position);
}

} // namespace adverb::loopback
