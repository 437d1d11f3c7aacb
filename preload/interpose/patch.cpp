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

// What stands in the place of a provider's pointer, if it has one.
#define PATCHED_OPS(OP)                                                                            \
  OP(post_send, dispatch_post_send)                                                                \
  OP(post_recv, dispatch_post_recv)                                                                \
  OP(post_srq_recv, dispatch_post_srq_recv)                                                        \
  OP(poll_cq, dispatch_poll_cq)                                                                    \
  OP(req_notify_cq, dispatch_req_notify_cq)                                                        \
  OP(bind_mw, dispatch_bind_mw)
#define PATCHED_EXTENDED(OP)                                                                       \
  OP(create_qp_ex, create_qp_ex)                                                                   \
  OP(create_cq_ex, create_cq_ex)                                                                   \
  OP(create_srq_ex, create_srq_ex)                                                                 \
  OP(create_wq, create_wq)                                                                         \
  OP(open_qp, open_qp)                                                                             \
  OP(advise_mr, advise_mr)

bool patch(ibv_context* context) {
  const std::lock_guard hold(lock);
  if (!process_world().provider.keep_ops(context)) {
    process_world().log.error("too many device contexts; {} stays as the provider made it",
                              context->device->name);
    return false;
  }
  process_world().counters.count(observe::Counter::contexts_patched);
  const auto& kept = process_world().provider.ops(context);
#define PATCH(name, ours)                                                                          \
  if (kept.name != nullptr)                                                                        \
    context->ops.name = ours;
  PATCHED_OPS(PATCH)
#undef PATCH
  verbs_context* v = verbs_get_ctx(context);
  if (v == nullptr)
    return true;
#define PATCH(name, ours)                                                                          \
  if (kept.name != nullptr)                                                                        \
    v->name = ours;
  PATCHED_EXTENDED(PATCH)
#undef PATCH
  return true;
}

void unpatch(ibv_context* context) {
  const std::lock_guard hold(lock);
  const auto kept = process_world().provider.ops(context);
#define PUT_BACK(name, ours)                                                                       \
  if (context->ops.name == ours)                                                                   \
    context->ops.name = kept.name;
  PATCHED_OPS(PUT_BACK)
#undef PUT_BACK
  if (verbs_context* v = verbs_get_ctx(context)) {
#define PUT_BACK(name, ours)                                                                       \
  if (kept.name != nullptr && v->name == ours)                                                     \
    v->name = kept.name;
    PATCHED_EXTENDED(PUT_BACK)
#undef PUT_BACK
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
