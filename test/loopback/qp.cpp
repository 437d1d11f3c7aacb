// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Making, asking and ending queue pairs. Their states are in qp_state.cpp.
#include "engine.h"
#include "events.h"

#include <cerrno>

namespace adverb::loopback {

namespace {

int check_init(const ibv_qp_init_attr_ex& init) {
  constexpr uint32_t known =
      IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  constexpr uint64_t ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                           IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                           IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                           IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV |
                           IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV;
  if ((init.comp_mask & ~known) != 0)
    return EOPNOTSUPP;
  if ((init.comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || init.pd == nullptr ||
      init.send_cq == nullptr || init.recv_cq == nullptr)
    return EINVAL;
  if ((init.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && init.create_flags != 0)
    return EOPNOTSUPP;
  if ((init.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0 && (init.send_ops_flags & ~ops) != 0)
    return EOPNOTSUPP;
  if (init.qp_type != IBV_QPT_RC && init.qp_type != IBV_QPT_UC && init.qp_type != IBV_QPT_UD)
    return EOPNOTSUPP;
  const ibv_qp_cap& cap = init.cap;
  if (cap.max_send_wr > kMaxWr || cap.max_send_sge > kMaxSge || cap.max_inline_data > kMaxInline)
    return EINVAL;
  if (init.srq == nullptr && (cap.max_recv_wr > kMaxWr || cap.max_recv_sge > kMaxSge))
    return EINVAL;
  return 0;
}

void use(Qp& qp, int by) {
  const auto count = static_cast<uint32_t>(by);
  as<Pd>(qp.base()->pd)->users.fetch_add(count);
  as<Cq>(qp.base()->send_cq)->users.fetch_add(count);
  as<Cq>(qp.base()->recv_cq)->users.fetch_add(count);
  if (qp.base()->srq != nullptr)
    as<Srq>(qp.base()->srq)->users.fetch_add(count);
}

} // namespace

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* init) {
  if (const int error = check_init(*init); error != 0) {
    errno = error;
    return nullptr;
  }
  Process& process = *context_of(context)->process;
  auto* qp = new Qp{};
  qp->process = &process;
  qp->cap = init->cap;
  qp->cap.max_send_wr = std::max(1u, init->cap.max_send_wr);
  qp->cap.max_send_sge = std::max(1u, init->cap.max_send_sge);
  if (init->srq != nullptr)
    qp->cap.max_recv_wr = qp->cap.max_recv_sge = 0;
  qp->signal_all = init->sq_sig_all != 0;
  qp->queue_offset = init->srq != nullptr
                         ? as<Srq>(init->srq)->offset
                         : make_recv_queue(process, std::max(1u, init->cap.max_recv_wr), 0);
  const uint32_t number = qp->queue_offset == 0 ? 0 : process.allocate_qp(&qp->slot);
  if (number == 0) {
    if (init->srq == nullptr && qp->queue_offset != 0)
      free_recv_queue(process, qp->queue_offset);
    delete qp;
    errno = ENOMEM;
    return nullptr;
  }
  qp->queue = process.at<RecvQueue>(qp->queue_offset);
  qp->ring = std::make_unique<SendWqe[]>(qp->cap.max_send_wr);
  qp->inline_data =
      std::make_unique<char[]>(size_t{qp->cap.max_send_wr} * std::max(1u, qp->cap.max_inline_data));
  if (Context& device = *context_of(context); device.link && init->qp_type != IBV_QPT_RC)
    qp->lane = std::make_unique<Lane>(*device.link, device.lanes.fetch_add(1));
  QpSlot& slot = *qp->slot;
  slot.type = static_cast<uint32_t>(init->qp_type);
  slot.pd = as<Pd>(init->pd)->number;
  slot.device = context_of(context)->device->number;
  slot.recv_queue = qp->queue_offset;
  slot.recv_cq = as<Cq>(init->recv_cq)->offset;
  slot.translations = context_of(context)->translations;
  ibv_qp& base = *qp->base();
  base.context = context;
  base.qp_context = init->qp_context;
  base.pd = init->pd;
  base.send_cq = init->send_cq;
  base.recv_cq = init->recv_cq;
  base.srq = init->srq;
  base.handle = qp_index(number);
  base.qp_num = number;
  base.state = IBV_QPS_RESET;
  base.qp_type = init->qp_type;
  pthread_mutex_init(&base.mutex, nullptr);
  pthread_cond_init(&base.cond, nullptr);
  if ((init->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0) {
    qp->extended = true;
    qp->send_ops = init->send_ops_flags;
    install_extended_send(*qp);
  }
  use(*qp, 1);
  process.add_qp(qp_index(number), qp);
  init->cap = qp->cap;
  return &base;
}

} // namespace adverb::loopback

using namespace adverb::loopback;

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  ibv_qp_init_attr_ex extended = {};
  extended.qp_context = init->qp_context;
  extended.send_cq = init->send_cq;
  extended.recv_cq = init->recv_cq;
  extended.srq = init->srq;
  extended.cap = init->cap;
  extended.qp_type = init->qp_type;
  extended.sq_sig_all = init->sq_sig_all;
  extended.comp_mask = IBV_QP_INIT_ATTR_PD;
  extended.pd = pd;
  ibv_qp* qp = create_qp_ex(pd->context, &extended);
  if (qp != nullptr)
    init->cap = extended.cap;
  return qp;
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* base) {
  auto* qp = as<Qp>(base);
  return qp->extended ? &qp->ex : nullptr;
}

int ibv_query_qp(ibv_qp* base, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  auto* qp = as<Qp>(base);
  {
    std::lock_guard lock(qp->exec_mutex);
    *attr = qp->attr;
    attr->qp_state = static_cast<ibv_qp_state>(qp->slot->state.load());
    attr->sq_psn = qp->next_psn;
    attr->rq_psn = qp->slot->expected_psn.load();
  }
  base->state = attr->qp_state;
  attr->cur_qp_state = attr->qp_state;
  attr->cap = qp->cap;
  attr->port_num = 1;
  kick(*qp, inline_bytes());
  if (init == nullptr)
    return 0;
  *init = {};
  init->qp_context = base->qp_context;
  init->send_cq = base->send_cq;
  init->recv_cq = base->recv_cq;
  init->srq = base->srq;
  init->cap = qp->cap;
  init->qp_type = base->qp_type;
  init->sq_sig_all = qp->signal_all ? 1 : 0;
  return 0;
}

int ibv_destroy_qp(ibv_qp* base) {
  auto* qp = as<Qp>(base);
  Process& process = *qp->process;
  qp->slot->state.store(IBV_QPS_RESET, std::memory_order_seq_cst);
  process.remove_qp(qp_index(base->qp_num)); // and the progress thread has left it
  {
    std::lock_guard lock(qp->exec_mutex);
  }
  process.synchronize();
  clean_cqs_of(*qp);
  purge_async(base->context, qp);
  await_acknowledged(base->mutex, base->cond, base->events_completed, qp->events_delivered);
  if (base->srq == nullptr)
    free_recv_queue(process, qp->queue_offset);
  process.free_qp(*qp->slot);
  use(*qp, -1);
  delete qp;
  return 0;
}

int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) {
  return 0;
}
int ibv_query_ece(ibv_qp*, ibv_ece* ece) {
  *ece = {};
  return 0;
}
int ibv_set_ece(ibv_qp*, ibv_ece* ece) {
  return ece->vendor_id == 0 ? 0 : EOPNOTSUPP;
}
int ibv_attach_mcast(ibv_qp*, const ibv_gid*, uint16_t) {
  return EOPNOTSUPP;
}
int ibv_detach_mcast(ibv_qp*, const ibv_gid*, uint16_t) {
  return EOPNOTSUPP;
}
}
