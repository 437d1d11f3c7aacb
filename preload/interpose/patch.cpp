// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "interpose/patch.h"
#include "interpose/boundary.h"
#include "interpose/dispatch.h"
#include "interpose/extended.h"
#include "interpose/process_world.h"

#include <cerrno>
#include <mutex>

namespace adverb::interpose {
namespace {

constinit Mutex lock;

template <typename F, typename G> void swap_in(F& slot, G ours) {
  if (slot != nullptr)
    slot = ours;
}

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr) {
  if (provider::inside())
    return process_world().provider.ops(context).create_qp_ex(context, attr);
  return uncancelled([] { return nullptr; },
                     [&] { return model::Verbs{process_world()}.create_qp_ex(context, attr); });
}

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
  if (provider::inside())
    return process_world().provider.ops(context).create_cq_ex(context, attr);
  return uncancelled([] { return nullptr; },
                     [&] { return model::Verbs{process_world()}.create_cq_ex(context, attr); });
}

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr) {
  if (provider::inside())
    return process_world().provider.ops(context).create_srq_ex(context, attr);
  return uncancelled([] { return nullptr; },
                     [&] { return model::Verbs{process_world()}.create_srq_ex(context, attr); });
}

int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* sges,
              uint32_t count) {
  return uncancelled(
      [] { return errno; },
      [&] { return model::Verbs{process_world()}.advise_mr(pd, advice, flags, sges, count); });
}

// Work queues and shared queue pairs take local keys, which adverb could not translate.
bool may_be_unmanaged(ibv_context* context, const char* what) {
  if (provider::inside())
    return true;
  const int why =
      uncancelled([] { return errno; },
                  [&] { return model::Verbs{process_world()}.make_unmanaged(context, what); });
  errno = why != 0 ? why : errno;
  return why == 0;
}

ibv_wq* create_wq(ibv_context* context, ibv_wq_init_attr* attr) {
  return may_be_unmanaged(context, "a work queue")
             ? process_world().provider.ops(context).create_wq(context, attr)
             : nullptr;
}

ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr) {
  return may_be_unmanaged(context, "a shared queue pair")
             ? process_world().provider.ops(context).open_qp(context, attr)
             : nullptr;
}

// By `requires`, as older headers lack the youngest.
template <typename QpEx> void swap_in_all(QpEx* qp) {
#define WR(name, params, args)                                                                     \
  if constexpr (requires { qp->name; })                                                            \
    swap_in(qp->name, extended::name);
#define POST(name, params, args) WR(name, params, args)
#include "provider/extended.def"
}

} // namespace

void patch_creation(ibv_context* context) {
  const std::lock_guard hold(lock);
  if (!process_world().provider.keep_ops(context)) {
    process_world().log.error("too many device contexts; {} stays as the provider made it",
                              context->device->name);
    return;
  }
  process_world().counters.count(observe::Counter::contexts_patched);
  verbs_context* v = verbs_get_ctx(context);
  if (v == nullptr)
    return;
  const auto& kept = process_world().provider.ops(context);
  if (kept.create_qp_ex != nullptr)
    v->create_qp_ex = create_qp_ex;
  if (kept.create_cq_ex != nullptr)
    v->create_cq_ex = create_cq_ex;
  if (kept.create_srq_ex != nullptr)
    v->create_srq_ex = create_srq_ex;
  if (kept.create_wq != nullptr)
    v->create_wq = create_wq;
  if (kept.open_qp != nullptr)
    v->open_qp = open_qp;
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
  swap_in(context->ops.bind_mw, dispatch_bind_mw);
}

void unpatch(ibv_context* context) {
  const std::lock_guard hold(lock);
  const auto kept = process_world().provider.ops(context);
  context->ops.post_send = kept.post_send;
  context->ops.post_recv = kept.post_recv;
  context->ops.post_srq_recv = kept.post_srq_recv;
  context->ops.poll_cq = kept.poll_cq;
  context->ops.req_notify_cq = kept.req_notify_cq;
  context->ops.bind_mw = kept.bind_mw;
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
  process_world().provider.drop_ops(context);
}

void patch_qp_ex(ibv_qp_ex* qp) {
  swap_in_all(qp);
}

provider::CqExOps patch_cq_ex(ibv_cq_ex* cq) {
  provider::CqExOps kept;
#define CQ(ret, name, params, args, fail)                                                          \
  kept.name = cq->name;                                                                            \
  swap_in(cq->name, extended::name);
#include "provider/extended.def"
  return kept;
}

} // namespace adverb::interpose
