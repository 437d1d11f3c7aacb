// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Prints who owns the functions that inline verbs jump to, one "OBJECT FUNCTION OWNER" a line: of a
// context before and after it has objects, and of an extended queue pair and completion queue.
// OWNER: adverb, provider, none.
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <infiniband/verbs.h>

namespace {

template <typename F> void say(const char* object, const char* name, F function) {
  Dl_info info{};
  const char* owner = "none";
  if (function != nullptr && dladdr(reinterpret_cast<void*>(function), &info) != 0)
    owner = strstr(info.dli_fname, "libadverb") != nullptr ? "adverb" : "provider";
  printf("%s %s %s\n", object, name, owner);
}

void context_pointers(const char* object, ibv_context* context) {
  const auto& ops = context->ops;
  const verbs_context* v = verbs_get_ctx(context);
#define OPS(name) say(object, #name, ops.name)
  OPS(post_send), OPS(post_recv), OPS(post_srq_recv), OPS(poll_cq), OPS(req_notify_cq);
  OPS(alloc_mw), OPS(bind_mw), OPS(dealloc_mw);
  if (v == nullptr)
    return;
#define EXT(name) say(object, #name, v->name)
  EXT(create_qp_ex), EXT(create_cq_ex), EXT(create_srq_ex), EXT(create_wq), EXT(open_qp);
  EXT(advise_mr), EXT(alloc_null_mr), EXT(reg_dm_mr), EXT(alloc_dm), EXT(free_dm);
  EXT(modify_cq), EXT(post_srq_ops);
}

void qp_pointers(ibv_qp_ex* qp) {
#define QP(name) say("qp_ex", #name, qp->name)
  QP(wr_atomic_cmp_swp), QP(wr_atomic_fetch_add), QP(wr_atomic_write), QP(wr_bind_mw);
  QP(wr_local_inv), QP(wr_rdma_read), QP(wr_rdma_write), QP(wr_rdma_write_imm), QP(wr_send);
  QP(wr_send_imm), QP(wr_send_inv), QP(wr_send_tso), QP(wr_set_ud_addr), QP(wr_set_xrc_srqn);
  QP(wr_set_inline_data), QP(wr_set_inline_data_list), QP(wr_set_sge), QP(wr_set_sge_list);
  QP(wr_start), QP(wr_complete), QP(wr_abort);
}

void cq_pointers(ibv_cq_ex* cq) {
#define CQ(name) say("cq_ex", #name, cq->name)
  CQ(start_poll), CQ(next_poll), CQ(end_poll), CQ(read_opcode), CQ(read_vendor_err);
  CQ(read_byte_len), CQ(read_imm_data), CQ(read_qp_num), CQ(read_src_qp), CQ(read_wc_flags);
}

int fail(const char* what) {
  perror(what);
  return 1;
}

} // namespace

int main() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ibv_context* context = list != nullptr && count > 0 ? ibv_open_device(list[0]) : nullptr;
  if (context == nullptr)
    return fail("ibv_open_device");
  ibv_free_device_list(list);
  context_pointers("opened", context);

  ibv_pd* pd = ibv_alloc_pd(context);
  ibv_cq_init_attr_ex cq_init{};
  cq_init.cqe = 16;
  cq_init.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM;
  ibv_cq_ex* cq = ibv_create_cq_ex(context, &cq_init);
  if (cq == nullptr)
    return fail("ibv_create_cq_ex");
  ibv_qp_init_attr_ex init{};
  init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
  init.cap = {16, 16, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  init.pd = pd;
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND;
  ibv_qp* qp = ibv_create_qp_ex(context, &init);
  if (qp == nullptr)
    return fail("ibv_create_qp_ex");
  context_pointers("used", context);
  qp_pointers(ibv_qp_to_qp_ex(qp));
  cq_pointers(cq);
  if (ibv_destroy_qp(qp) != 0 || ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) != 0 ||
      ibv_dealloc_pd(pd) != 0 || ibv_close_device(context) != 0)
    return fail("tear-down");
  return 0;
}
