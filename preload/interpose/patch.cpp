// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "interpose/patch.h"
#include "interpose/boundary.h"
#include "interpose/dispatch.h"
#include "model/verbs.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "provider/real.h"

#include <cerrno>
#include <mutex>

namespace adverb::interpose {
namespace {

std::mutex lock;

template <typename F, typename G> void swap_in(F& slot, G ours) {
  if (slot != nullptr)
    slot = ours;
}

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr) {
  if (provider::inside())
    return provider::ops(context).create_qp_ex(context, attr);
  return boundary([] { return nullptr; }, [&] { return model::create_qp_ex(context, attr); });
}

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
  if (provider::inside())
    return provider::ops(context).create_cq_ex(context, attr);
  return boundary([] { return nullptr; }, [&] { return model::create_cq_ex(context, attr); });
}

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr) {
  if (provider::inside())
    return provider::ops(context).create_srq_ex(context, attr);
  return boundary([] { return nullptr; }, [&] { return model::create_srq_ex(context, attr); });
}

int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* sges,
              uint32_t count) {
  return boundary([] { return errno; },
                  [&] { return model::advise_mr(pd, advice, flags, sges, count); });
}

// Work queues and shared queue pairs take local keys adverb could not translate.
ibv_wq* refuse_wq(ibv_context* context, ibv_wq_init_attr*) {
  observe::log_error(
      "{}: ibv_create_wq is refused because regions of this program may be unpinned; "
      "pin them by a policy rule to use work queues",
      context->device->name);
  errno = EOPNOTSUPP;
  return nullptr;
}

ibv_qp* refuse_open_qp(ibv_context* context, ibv_qp_open_attr*) {
  observe::log_error("{}: ibv_open_qp is refused because regions of this program may be unpinned; "
                     "pin them by a policy rule to share XRC queue pairs",
                     context->device->name);
  errno = EOPNOTSUPP;
  return nullptr;
}

// Headers since rdma-core 45 have it.
template <typename Extended> void patch_flush(Extended* qp) {
  if constexpr (requires { qp->wr_flush; })
    swap_in(qp->wr_flush, model::wr_flush);
}

} // namespace

void patch_creation(ibv_context* context) {
  const std::lock_guard hold(lock);
  if (!provider::keep_ops(context)) {
    observe::log_error("too many device contexts; {} stays as the provider made it",
                       context->device->name);
    return;
  }
  observe::count(observe::Counter::contexts_patched);
  verbs_context* v = verbs_get_ctx(context);
  if (v == nullptr)
    return;
  const auto& kept = provider::ops(context);
  if (kept.create_qp_ex != nullptr)
    v->create_qp_ex = create_qp_ex;
  if (kept.create_cq_ex != nullptr)
    v->create_cq_ex = create_cq_ex;
  if (kept.create_srq_ex != nullptr)
    v->create_srq_ex = create_srq_ex;
  if (kept.create_wq != nullptr)
    v->create_wq = refuse_wq;
  if (kept.open_qp != nullptr)
    v->open_qp = refuse_open_qp;
  if (kept.advise_mr != nullptr)
    v->advise_mr = advise_mr;
}

void patch_data_path(ibv_context* context) {
  const std::lock_guard hold(lock);
  if (context->ops.post_send == dispatch_post_send)
    return;
  context->ops.post_send = dispatch_post_send;
  context->ops.post_recv = dispatch_post_recv;
  swap_in(context->ops.post_srq_recv, dispatch_post_srq_recv);
  context->ops.poll_cq = dispatch_poll_cq;
  context->ops.req_notify_cq = dispatch_req_notify_cq;
}

void unpatch(ibv_context* context) {
  const std::lock_guard hold(lock);
  const auto kept = provider::ops(context);
  context->ops.post_send = kept.post_send;
  context->ops.post_recv = kept.post_recv;
  context->ops.post_srq_recv = kept.post_srq_recv;
  context->ops.poll_cq = kept.poll_cq;
  context->ops.req_notify_cq = kept.req_notify_cq;
  if (verbs_context* v = verbs_get_ctx(context)) {
    swap_in(v->create_qp_ex, kept.create_qp_ex);
    swap_in(v->create_cq_ex, kept.create_cq_ex);
    swap_in(v->create_srq_ex, kept.create_srq_ex);
    if (kept.create_wq != nullptr)
      v->create_wq = kept.create_wq;
    if (kept.open_qp != nullptr)
      v->open_qp = kept.open_qp;
    if (kept.advise_mr != nullptr)
      v->advise_mr = kept.advise_mr;
  }
  provider::drop_ops(context);
}

void patch_qp_ex(ibv_qp_ex* qp) {
  swap_in(qp->wr_atomic_cmp_swp, model::wr_atomic_cmp_swp);
  swap_in(qp->wr_atomic_fetch_add, model::wr_atomic_fetch_add);
  swap_in(qp->wr_bind_mw, model::wr_bind_mw);
  swap_in(qp->wr_local_inv, model::wr_local_inv);
  swap_in(qp->wr_rdma_read, model::wr_rdma_read);
  swap_in(qp->wr_rdma_write, model::wr_rdma_write);
  swap_in(qp->wr_rdma_write_imm, model::wr_rdma_write_imm);
  swap_in(qp->wr_send, model::wr_send);
  swap_in(qp->wr_send_imm, model::wr_send_imm);
  swap_in(qp->wr_send_inv, model::wr_send_inv);
  swap_in(qp->wr_send_tso, model::wr_send_tso);
  swap_in(qp->wr_set_ud_addr, model::wr_set_ud_addr);
  swap_in(qp->wr_set_xrc_srqn, model::wr_set_xrc_srqn);
  swap_in(qp->wr_set_inline_data, model::wr_set_inline_data);
  swap_in(qp->wr_set_inline_data_list, model::wr_set_inline_data_list);
  swap_in(qp->wr_set_sge, model::wr_set_sge);
  swap_in(qp->wr_set_sge_list, model::wr_set_sge_list);
  swap_in(qp->wr_start, model::wr_start);
  swap_in(qp->wr_complete, model::wr_complete);
  swap_in(qp->wr_abort, model::wr_abort);
  swap_in(qp->wr_atomic_write, model::wr_atomic_write);
  patch_flush(qp);
}

provider::CqExOps patch_cq_ex(ibv_cq_ex* cq) {
  provider::CqExOps kept;
  const auto take = [](auto& keep, auto& slot, auto ours) {
    keep = slot;
    swap_in(slot, ours);
  };
  take(kept.start_poll, cq->start_poll, model::cq_ex_start_poll);
  take(kept.next_poll, cq->next_poll, model::cq_ex_next_poll);
  take(kept.end_poll, cq->end_poll, model::cq_ex_end_poll);
  take(kept.read_opcode, cq->read_opcode, model::cq_ex_read_opcode);
  take(kept.read_vendor_err, cq->read_vendor_err, model::cq_ex_read_vendor_err);
  take(kept.read_byte_len, cq->read_byte_len, model::cq_ex_read_byte_len);
  take(kept.read_imm_data, cq->read_imm_data, model::cq_ex_read_imm_data);
  take(kept.read_qp_num, cq->read_qp_num, model::cq_ex_read_qp_num);
  take(kept.read_src_qp, cq->read_src_qp, model::cq_ex_read_src_qp);
  take(kept.read_wc_flags, cq->read_wc_flags, model::cq_ex_read_wc_flags);
  take(kept.read_slid, cq->read_slid, model::cq_ex_read_slid);
  take(kept.read_sl, cq->read_sl, model::cq_ex_read_sl);
  take(kept.read_dlid_path_bits, cq->read_dlid_path_bits, model::cq_ex_read_dlid_path_bits);
  take(kept.read_completion_ts, cq->read_completion_ts, model::cq_ex_read_completion_ts);
  take(kept.read_cvlan, cq->read_cvlan, model::cq_ex_read_cvlan);
  take(kept.read_flow_tag, cq->read_flow_tag, model::cq_ex_read_flow_tag);
  take(kept.read_tm_info, cq->read_tm_info, model::cq_ex_read_tm_info);
  take(kept.read_completion_wallclock_ns, cq->read_completion_wallclock_ns,
       model::cq_ex_read_completion_wallclock_ns);
  return kept;
}

} // namespace adverb::interpose
