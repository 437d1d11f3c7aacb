// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The provider's own function pointers of a context, as they were before adverb patched them.
#pragma once

#include <infiniband/verbs.h>

namespace adverb::provider {

// Null where the provider has none.
struct ContextOps {
  decltype(ibv_context_ops::post_send) post_send = nullptr;
  decltype(ibv_context_ops::post_recv) post_recv = nullptr;
  decltype(ibv_context_ops::post_srq_recv) post_srq_recv = nullptr;
  decltype(ibv_context_ops::poll_cq) poll_cq = nullptr;
  decltype(ibv_context_ops::req_notify_cq) req_notify_cq = nullptr;
  decltype(ibv_context_ops::bind_mw) bind_mw = nullptr;
  decltype(verbs_context::create_qp_ex) create_qp_ex = nullptr;
  decltype(verbs_context::create_cq_ex) create_cq_ex = nullptr;
  decltype(verbs_context::create_srq_ex) create_srq_ex = nullptr;
  decltype(verbs_context::create_wq) create_wq = nullptr;
  decltype(verbs_context::open_qp) open_qp = nullptr;
  decltype(verbs_context::advise_mr) advise_mr = nullptr;
  decltype(verbs_context::query_device_ex) query_device_ex = nullptr;
};

// The pointers of an extended CQ.
struct CqExOps {
#define CQ(ret, name, params, args, fail) decltype(ibv_cq_ex::name) name = nullptr;
#include "provider/extended.def"
};

} // namespace adverb::provider
