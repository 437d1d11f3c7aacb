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
  decltype(verbs_context::create_qp_ex) create_qp_ex = nullptr;
  decltype(verbs_context::create_cq_ex) create_cq_ex = nullptr;
  decltype(verbs_context::create_srq_ex) create_srq_ex = nullptr;
  decltype(verbs_context::create_wq) create_wq = nullptr;
  decltype(verbs_context::open_qp) open_qp = nullptr;
  decltype(verbs_context::advise_mr) advise_mr = nullptr;
};

// Of a patched context what was kept, of another what stands there now. Lock-free.
const ContextOps& ops(ibv_context* context) noexcept;

// Kept by the patching (interpose/patch.h): remembers `context`'s pointers, or forgets them. False:
// no room for one more context, which must then not be patched.
bool keep_ops(ibv_context* context);
void drop_ops(ibv_context* context) noexcept;

// The pointers of an extended CQ.
struct CqExOps {
  decltype(ibv_cq_ex::start_poll) start_poll = nullptr;
  decltype(ibv_cq_ex::next_poll) next_poll = nullptr;
  decltype(ibv_cq_ex::end_poll) end_poll = nullptr;
  decltype(ibv_cq_ex::read_opcode) read_opcode = nullptr;
  decltype(ibv_cq_ex::read_vendor_err) read_vendor_err = nullptr;
  decltype(ibv_cq_ex::read_byte_len) read_byte_len = nullptr;
  decltype(ibv_cq_ex::read_imm_data) read_imm_data = nullptr;
  decltype(ibv_cq_ex::read_qp_num) read_qp_num = nullptr;
  decltype(ibv_cq_ex::read_src_qp) read_src_qp = nullptr;
  decltype(ibv_cq_ex::read_wc_flags) read_wc_flags = nullptr;
  decltype(ibv_cq_ex::read_slid) read_slid = nullptr;
  decltype(ibv_cq_ex::read_sl) read_sl = nullptr;
  decltype(ibv_cq_ex::read_dlid_path_bits) read_dlid_path_bits = nullptr;
  decltype(ibv_cq_ex::read_completion_ts) read_completion_ts = nullptr;
  decltype(ibv_cq_ex::read_cvlan) read_cvlan = nullptr;
  decltype(ibv_cq_ex::read_flow_tag) read_flow_tag = nullptr;
  decltype(ibv_cq_ex::read_tm_info) read_tm_info = nullptr;
  decltype(ibv_cq_ex::read_completion_wallclock_ns) read_completion_wallclock_ns = nullptr;
};

} // namespace adverb::provider
