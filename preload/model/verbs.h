// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The verbs adverb manages, each with the signature and the errors of its man page. interpose/
// calls them; nothing else does.
#pragma once

#include <cstddef>
#include <cstdint>

#include <infiniband/verbs.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace adverb::model {

// Exported functions, from the table.
#define HOOK(ret, name, node, need, params, args, fail) ret name params;
#include "interpose/verbs.def"

// Context functions that create objects.
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr);
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr);
ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr);
int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* sges,
              uint32_t count);

// Context functions of the data path. An object that is not managed goes to the provider.
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad);
int poll_cq(ibv_cq* cq, int entries, ibv_wc* wc);
int req_notify_cq(ibv_cq* cq, int solicited_only);

// Of managed extended queue pairs.
void wr_atomic_cmp_swp(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, uint64_t compare,
                       uint64_t swap);
void wr_atomic_fetch_add(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, uint64_t add);
void wr_atomic_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, const void* value);
void wr_flush(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, size_t length, uint8_t type,
              uint8_t level);
void wr_bind_mw(ibv_qp_ex* qp, ibv_mw* mw, uint32_t rkey, const ibv_mw_bind_info* info);
void wr_local_inv(ibv_qp_ex* qp, uint32_t rkey);
void wr_rdma_read(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr);
void wr_rdma_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr);
void wr_rdma_write_imm(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, __be32 imm_data);
void wr_send(ibv_qp_ex* qp);
void wr_send_imm(ibv_qp_ex* qp, __be32 imm_data);
void wr_send_inv(ibv_qp_ex* qp, uint32_t rkey);
void wr_send_tso(ibv_qp_ex* qp, void* header, uint16_t header_bytes, uint16_t mss);
void wr_set_ud_addr(ibv_qp_ex* qp, ibv_ah* ah, uint32_t remote_qpn, uint32_t remote_qkey);
void wr_set_xrc_srqn(ibv_qp_ex* qp, uint32_t remote_srqn);
void wr_set_inline_data(ibv_qp_ex* qp, void* addr, size_t length);
void wr_set_inline_data_list(ibv_qp_ex* qp, size_t count, const ibv_data_buf* list);
void wr_set_sge(ibv_qp_ex* qp, uint32_t lkey, uint64_t addr, uint32_t length);
void wr_set_sge_list(ibv_qp_ex* qp, size_t count, const ibv_sge* list);
void wr_start(ibv_qp_ex* qp);
int wr_complete(ibv_qp_ex* qp);
void wr_abort(ibv_qp_ex* qp);

// Of managed extended completion queues.
int cq_ex_start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr* attr);
int cq_ex_next_poll(ibv_cq_ex* cq);
void cq_ex_end_poll(ibv_cq_ex* cq);
ibv_wc_opcode cq_ex_read_opcode(ibv_cq_ex* cq);
uint32_t cq_ex_read_vendor_err(ibv_cq_ex* cq);
uint32_t cq_ex_read_byte_len(ibv_cq_ex* cq);
__be32 cq_ex_read_imm_data(ibv_cq_ex* cq);
uint32_t cq_ex_read_qp_num(ibv_cq_ex* cq);
uint32_t cq_ex_read_src_qp(ibv_cq_ex* cq);
unsigned int cq_ex_read_wc_flags(ibv_cq_ex* cq);
uint32_t cq_ex_read_slid(ibv_cq_ex* cq);
uint8_t cq_ex_read_sl(ibv_cq_ex* cq);
uint8_t cq_ex_read_dlid_path_bits(ibv_cq_ex* cq);
uint64_t cq_ex_read_completion_ts(ibv_cq_ex* cq);
uint16_t cq_ex_read_cvlan(ibv_cq_ex* cq);
uint32_t cq_ex_read_flow_tag(ibv_cq_ex* cq);
void cq_ex_read_tm_info(ibv_cq_ex* cq, ibv_wc_tm_info* info);
uint64_t cq_ex_read_completion_wallclock_ns(ibv_cq_ex* cq);

} // namespace adverb::model
