// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "responder.h"

#include <cstring>

namespace adverb::loopback {

namespace {
constexpr uint32_t kGrhBytes = 40;
}

Responder::Responder(const Origin& origin, QpSlot& target, uint32_t owner)
    : origin_(origin), process_(*origin.process), target_(target), owner_(owner),
      incarnation_(target.incarnation.load()), pid_(process_.fabric().process[owner].pid.load()) {}

bool Responder::attached() {
  const uint32_t state = target_.state.load(std::memory_order_seq_cst);
  if (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_SQD)
    return false;
  if (target_.process.load() != owner_ ||
      process_.fabric().process[owner_].incarnation.load() != incarnation_)
    return false;
  // The dead are silent at once, also where no byte would have to move.
  if (owner_ != process_.index() && !process_.alive(owner_, incarnation_))
    return false;
  arena_ = process_.arena_of(owner_, incarnation_);
  return arena_ != nullptr;
}

bool Responder::listening(bool reliable, uint32_t psn) {
  if (target_.number.load(std::memory_order_seq_cst) != origin_.dest || !attached() ||
      target_.type != origin_.type)
    return false;
  if (!origin_.over_link && target_.dest.load() != origin_.qpn)
    return false;
  if (!gid_matches(target_.device, origin_.dgid))
    return false;
  return !reliable || target_.expected_psn.load() == psn;
}

// One requester at a time fills a receive of a queue pair. An RC connection has one requester.
// Datagrams have many, and a late packet of UC may meet the packets of another connection.
pthread_mutex_t& Responder::receive_lock() {
  Fabric& fabric = process_.fabric();
  return fabric.receives[static_cast<size_t>(&target_ - fabric.qp) % kReceiveLocks];
}

Reply Responder::serve(SendWqe& wqe, const Ranges& local) {
  if (target_.type == IBV_QPT_RC)
    return carry_out(wqe, local);
  const RobustLock lock(receive_lock());
  return carry_out(wqe, local);
}

Reply Responder::carry_out(SendWqe& wqe, const Ranges& local) {
  switch (wqe.opcode) {
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    return write(wqe, local);
  case IBV_WR_RDMA_READ:
    return read(wqe, local);
  case IBV_WR_ATOMIC_CMP_AND_SWP:
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    return atomic(wqe, local);
  default:
    return send(wqe, local);
  }
}

// A NAK: the target's QP fails with an event of its own, on reliable connections.
Reply Responder::refuse(ibv_event_type event, ibv_wc_status status) {
  if (target_.type == IBV_QPT_RC) {
    target_.state.store(IBV_QPS_ERR, std::memory_order_seq_cst);
    raise_qp_event(process_, target_, kQpFlush | 1u << event);
  }
  return {Reply::refused, status};
}

Reply Responder::check_remote(const SendWqe& wqe, uint64_t length, uint32_t right,
                              uint64_t* address) {
  if ((target_.access.load() & right) == 0)
    return refuse(IBV_EVENT_QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
  if (length == 0)
    return {};
  if (check_key(process_, owner_, incarnation_, target_.pd, wqe.rkey, wqe.remote_addr, length,
                right, {target_.type, odp_operation(wqe.opcode)}, target_.number.load(),
                address) != Verdict::ok)
    return refuse(IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
  on_demand_ = is_on_demand(wqe.rkey);
  charge_translation(owner_, *address, length);
  return {};
}

Reply Responder::copied(Copied result) {
  switch (result) {
  case Copied::all:
    return {};
  case Copied::gone:
    return {Reply::gone, IBV_WC_SUCCESS};
  case Copied::local_fault:
    return {Reply::requester_error, IBV_WC_LOC_PROT_ERR};
  default:          // the owner unmapped what it had registered
    if (on_demand_) // as rxe has it: the page does not come, which nobody notices before
      return refuse(IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
    return refuse(IBV_EVENT_QP_FATAL, IBV_WC_REM_OP_ERR);
  }
}

bool Responder::is_on_demand(uint32_t key) const {
  return (process_.fabric().key[key_index(key)].access & IBV_ACCESS_ON_DEMAND) != 0;
}

void Responder::translate_each(const Ranges& remote) {
  auto& cache = *reinterpret_cast<TranslationCache*>(arena_ + target_.translations);
  ProcessSlot& owner = process_.fabric().process[owner_];
  for (uint32_t i = 0; i < remote.count; ++i)
    loopback::translate(cache, owner, reinterpret_cast<uint64_t>(remote.part[i].iov_base),
                        remote.part[i].iov_len);
}

Work Responder::receiving() const {
  const auto& queue = *reinterpret_cast<const RecvQueue*>(arena_ + target_.recv_queue);
  const uint32_t own = IBV_ODP_SUPPORT_RECV;
  return {target_.type, queue.srq != 0 ? uint32_t{IBV_ODP_SUPPORT_SRQ_RECV} : own};
}

// Consumes a receive into target_.current. At most one is being filled per QP.
Reply Responder::take_receive() {
  auto& queue = *reinterpret_cast<RecvQueue*>(arena_ + target_.recv_queue);
  bool limit_reached = false;
  {
    RobustLock lock(queue.consumer);
    const uint64_t head = queue.head.load(std::memory_order_relaxed);
    const uint64_t tail = queue.tail.load(std::memory_order_acquire);
    if (head == tail)
      return {Reply::rnr, IBV_WC_SUCCESS};
    const auto* wqes = reinterpret_cast<const RecvWqe*>(arena_ + queue.wqes);
    const RecvWqe& wqe = wqes[head % queue.max_wr];
    target_.current.wr_id = wqe.wr_id;
    target_.current.num_sge = wqe.num_sge;
    for (uint32_t i = 0; i < wqe.num_sge; ++i)
      target_.current.sge[i] = wqe.sge[i];
    target_.receiving.store(1);
    queue.head.store(head + 1, std::memory_order_release);
    uint32_t limit = queue.limit.load();
    if (queue.srq != 0 && limit != 0 && tail - head - 1 < limit)
      limit_reached = queue.limit.compare_exchange_strong(limit, 0);
  }
  if (limit_reached) {
    const uint32_t number = queue.srq - 1;
    process_.fabric().process[owner_].srq_bits[number / 64].fetch_or(uint64_t{1} << number % 64);
    process_.ring(owner_, kLookAtSrqs);
  }
  return {};
}

void Responder::complete_receive(const SendWqe& wqe, ibv_wc_status status, uint32_t opcode,
                                 uint32_t bytes, uint32_t wc_flags) {
  Completion completion = {};
  completion.wr_id = target_.current.wr_id;
  completion.status = status;
  completion.opcode = opcode;
  completion.byte_len = bytes;
  completion.imm_data = wqe.imm_data;
  completion.qp_num = target_.number.load();
  // A packet of UC does not say who sent it.
  const bool unnamed = origin_.over_link && target_.type == IBV_QPT_UC;
  completion.src_qp = unnamed ? target_.dest.load() : origin_.qpn;
  completion.wc_flags = wc_flags;
  completion.solicited = (wqe.flags & IBV_SEND_SOLICITED) != 0;
  // Cleared first: a requester killed in between loses the completion, never doubles it.
  target_.receiving.store(0);
  push_completion(process_, owner_, arena_, target_.recv_cq, completion);
}

Reply Responder::refuse_receive(ibv_wc_status mine, ibv_wc_status theirs) {
  SendWqe none = {};
  complete_receive(none, mine, IBV_WC_RECV, 0, 0);
  if (target_.type == IBV_QPT_RC) {
    target_.state.store(IBV_QPS_ERR, std::memory_order_seq_cst);
    raise_qp_event(process_, target_, kQpFlush);
  }
  return {Reply::refused, theirs};
}

Reply Responder::write(SendWqe& wqe, const Ranges& local) {
  uint64_t address = 0;
  if (Reply reply = check_remote(wqe, wqe.length, IBV_ACCESS_REMOTE_WRITE, &address);
      reply.kind != Reply::acknowledged)
    return reply;
  bool completes = wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (completes)
    if (Reply reply = take_receive(); reply.kind != Reply::acknowledged) {
      if (!origin_.place_unbacked)
        return reply;
      completes = false;
    }
  Ranges remote;
  remote.add(address, wqe.length);
  translate(remote);
  if (Reply reply = copied(copy_out(pid_, local, remote)); reply.kind != Reply::acknowledged)
    return reply;
  if (completes)
    complete_receive(wqe, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, wqe.length, IBV_WC_WITH_IMM);
  return {};
}

Reply Responder::read(SendWqe& wqe, const Ranges& local) {
  if (wqe.moved)
    return {};
  uint64_t address = 0;
  if (target_.max_dest_rd_atomic.load() == 0)
    return refuse(IBV_EVENT_QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
  if (Reply reply = check_remote(wqe, wqe.length, IBV_ACCESS_REMOTE_READ, &address);
      reply.kind != Reply::acknowledged)
    return reply;
  Ranges remote;
  remote.add(address, wqe.length);
  translate(remote);
  return copied(copy_in(pid_, local, remote));
}

bool Responder::peek(SendWqe& wqe, const Ranges& local) {
  uint64_t address = 0;
  if (wqe.length == 0 || (target_.access.load() & IBV_ACCESS_REMOTE_READ) == 0 ||
      check_key(process_, owner_, incarnation_, target_.pd, wqe.rkey, wqe.remote_addr, wqe.length,
                IBV_ACCESS_REMOTE_READ, {target_.type, IBV_ODP_SUPPORT_READ}, target_.number.load(),
                &address) != Verdict::ok)
    return false;
  Ranges remote;
  remote.add(address, wqe.length);
  translate(remote);
  return copy_in(pid_, local, remote) == Copied::all;
}

// Atomic among all work requests of the fabric (IBV_ATOMIC_HCA), not against the CPU.
Reply Responder::atomic(SendWqe& wqe, const Ranges& local) {
  uint64_t address = 0;
  if (target_.max_dest_rd_atomic.load() == 0 || wqe.remote_addr % 8 != 0)
    return refuse(IBV_EVENT_QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
  if (Reply reply = check_remote(wqe, 8, IBV_ACCESS_REMOTE_ATOMIC, &address);
      reply.kind != Reply::acknowledged)
    return reply;
  uint64_t before = 0;
  Ranges remote, scratch;
  remote.add(address, 8);
  scratch.add(reinterpret_cast<uint64_t>(&before), 8);
  translate(remote);
  {
    RobustLock lock(process_.fabric().atomics[(address >> 3 ^ address >> 12) % 64]);
    if (Reply reply = copied(copy_in(pid_, scratch, remote)); reply.kind != Reply::acknowledged)
      return reply;
    uint64_t after = before + wqe.compare_add;
    if (wqe.opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
      after = before == wqe.compare_add ? wqe.swap : before;
    Ranges result;
    result.add(reinterpret_cast<uint64_t>(&after), 8);
    if (Reply reply = copied(copy_out(pid_, result, remote)); reply.kind != Reply::acknowledged)
      return reply;
  }
  Ranges target = local; // the first eight bytes of what the SGEs name
  for (uint64_t i = 0, left = 8; i < target.count; ++i) {
    target.part[i].iov_len = std::min<uint64_t>(target.part[i].iov_len, left);
    left -= target.part[i].iov_len;
    if (left == 0)
      target.count = static_cast<uint32_t>(i + 1);
  }
  if (copy_out(process_.pid(), scratch, target) != Copied::all)
    return {Reply::requester_error, IBV_WC_LOC_PROT_ERR};
  return {};
}

bool Responder::invalidate(uint32_t key) {
  const uint32_t index = key_index(key);
  if (index == 0 || index >= kMaxKeys)
    return false;
  KeySlot& slot = process_.fabric().key[index];
  uint32_t expected = key;
  return slot.kind.load() == kWindowKey && slot.process == owner_ &&
         slot.window_qp == target_.number.load() && slot.key.compare_exchange_strong(expected, 0);
}

Reply Responder::send(SendWqe& wqe, const Ranges& local) {
  if (Reply reply = take_receive(); reply.kind != Reply::acknowledged)
    return reply;
  Ranges remote;
  uint64_t left = wqe.length;
  for (uint32_t i = 0; i < target_.current.num_sge && left != 0; ++i) {
    const ibv_sge& sge = target_.current.sge[i];
    const uint64_t part = std::min<uint64_t>(sge.length, left);
    if (part == 0)
      continue;
    uint64_t address = 0;
    if (check_key(process_, owner_, incarnation_, target_.pd, sge.lkey, sge.addr, sge.length,
                  IBV_ACCESS_LOCAL_WRITE, receiving(), 0, &address) != Verdict::ok)
      return refuse_receive(IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR);
    remote.add(address, part);
    left -= part;
  }
  if (left != 0)
    return refuse_receive(IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR);
  translate(remote);
  const Copied result =
      copy_out(pid_, local, remote, false); // its completion tells that it is there
  if (result == Copied::remote_fault)
    return refuse_receive(IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR);
  if (Reply reply = copied(result); reply.kind != Reply::acknowledged)
    return reply;
  uint32_t flags = 0;
  if (wqe.opcode == IBV_WR_SEND_WITH_IMM)
    flags = IBV_WC_WITH_IMM;
  if (wqe.opcode == IBV_WR_SEND_WITH_INV) {
    flags = IBV_WC_WITH_INV;
    if (!invalidate(wqe.imm_data))
      return refuse(IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
  }
  complete_receive(wqe, IBV_WC_SUCCESS, IBV_WC_RECV, wqe.length, flags);
  return {};
}

bool Responder::hears_datagram() {
  if (target_.number.load(std::memory_order_seq_cst) != origin_.dest || !attached() ||
      target_.type != IBV_QPT_UD)
    return false;
  return target_.qkey.load() == origin_.qkey && gid_matches(target_.device, origin_.dgid);
}

Reply Responder::deliver_datagram(const SendWqe& wqe, const Ranges& local) {
  const RobustLock lock(receive_lock());
  return fill_datagram(wqe, local);
}

Reply Responder::fill_datagram(const SendWqe& wqe, const Ranges& local) {
  if (take_receive().kind != Reply::acknowledged)
    return {};
  char grh[kGrhBytes] = {0x60};
  grh[4] = static_cast<char>(wqe.length >> 8);
  grh[5] = static_cast<char>(wqe.length & 0xff);
  grh[6] = 0x1b; // next header: IBA
  grh[7] = 64;
  const ibv_gid source = gid_of(origin_.device, origin_.sgid_index);
  memcpy(grh + 8, &source, 16);
  memcpy(grh + 24, &origin_.dgid, 16);
  Ranges from, to;
  from.add(reinterpret_cast<uint64_t>(grh), kGrhBytes);
  for (uint32_t i = 0; i < local.count; ++i)
    from.add(reinterpret_cast<uint64_t>(local.part[i].iov_base), local.part[i].iov_len);
  uint64_t left = from.bytes;
  for (uint32_t i = 0; i < target_.current.num_sge && left != 0; ++i) {
    const ibv_sge& sge = target_.current.sge[i];
    const uint64_t part = std::min<uint64_t>(sge.length, left);
    uint64_t address = 0;
    if (part != 0 &&
        check_key(process_, owner_, incarnation_, target_.pd, sge.lkey, sge.addr, sge.length,
                  IBV_ACCESS_LOCAL_WRITE, receiving(), 0, &address) != Verdict::ok)
      return refuse_receive(IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS);
    to.add(address, part);
    left -= part;
  }
  if (left != 0)
    return refuse_receive(IBV_WC_LOC_LEN_ERR, IBV_WC_SUCCESS);
  translate(to);
  const Copied result = copy_out(pid_, from, to);
  if (result == Copied::local_fault)
    return {Reply::requester_error, IBV_WC_LOC_PROT_ERR};
  uint32_t flags = IBV_WC_GRH;
  if (wqe.opcode == IBV_WR_SEND_WITH_IMM)
    flags |= IBV_WC_WITH_IMM;
  complete_receive(wqe, result == Copied::all ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR, IBV_WC_RECV,
                   wqe.length + kGrhBytes, flags);
  return {};
}

} // namespace adverb::loopback
