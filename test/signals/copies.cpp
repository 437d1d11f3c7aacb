// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "copies.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

namespace signals {
namespace {

constexpr size_t page = 4096;
constexpr uint32_t bytes = 64;
constexpr int local = IBV_ACCESS_LOCAL_WRITE;

char* pages(size_t count) {
  void* at =
      mmap(nullptr, count * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(at != MAP_FAILED, "mmap");
  memset(at, 1, count * page);
  return static_cast<char*>(at);
}

void connect_one(ibv_qp* qp, const ibv_qp* to) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  int rc = ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = to->qp_num;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 1;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.sgid_index = 1;
  attr.ah_attr.grh.hop_limit = 64;
  rc |= ibv_query_gid(qp->context, 1, 1, &attr.ah_attr.grh.dgid);
  rc |= ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  attr.qp_state = IBV_QPS_RTS;
  attr.max_rd_atomic = 1;
  attr.timeout = 14;
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  rc |= ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
                          IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
  must(rc == 0, "ibv_modify_qp");
}

} // namespace

void must(bool good, const char* what) {
  if (good)
    return;
  fprintf(stderr, "signals: %s failed\n", what);
  _Exit(99);
}

Copies::Copies() : source_(pages(2)), target_(pages(1)) {
  int n = 0;
  ibv_device** list = ibv_get_device_list(&n);
  must(n > 0, "ibv_get_device_list");
  context_ = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  must(context_ != nullptr, "ibv_open_device");
  pd_ = ibv_alloc_pd(context_);
  cq_ = ibv_create_cq(context_, 16, nullptr, nullptr, 0);
  must(pd_ != nullptr && cq_ != nullptr, "ibv_create_cq");
  source_mr_ = ibv_reg_mr(pd_, source_, 2 * page, local);
  target_mr_ = ibv_reg_mr(pd_, target_, page, local | IBV_ACCESS_REMOTE_WRITE);
  must(source_mr_ != nullptr && target_mr_ != nullptr, "ibv_reg_mr");
  must(mprotect(source_ + page, page, PROT_NONE) == 0, "mprotect");
  good_ = connect();
}

Copies::~Copies() {
  disconnect(good_);
  must(ibv_dereg_mr(source_mr_) == 0 && ibv_dereg_mr(target_mr_) == 0, "ibv_dereg_mr");
  must(ibv_destroy_cq(cq_) == 0 && ibv_dealloc_pd(pd_) == 0, "ibv_destroy_cq");
  must(ibv_close_device(context_) == 0, "ibv_close_device");
  munmap(source_, 2 * page);
  munmap(target_, page);
}

Copies::Pair Copies::connect() {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq_;
  init.qp_type = IBV_QPT_RC;
  init.cap = {4, 4, 1, 1, 0};
  const Pair pair{ibv_create_qp(pd_, &init), ibv_create_qp(pd_, &init)};
  must(pair.from != nullptr && pair.to != nullptr, "ibv_create_qp");
  connect_one(pair.to, pair.from);
  connect_one(pair.from, pair.to);
  return pair;
}

void Copies::disconnect(Pair pair) {
  must(ibv_destroy_qp(pair.from) == 0 && ibv_destroy_qp(pair.to) == 0, "ibv_destroy_qp");
}

ibv_wc_status Copies::write(Pair pair, const char* from) {
  ibv_sge sge{reinterpret_cast<uint64_t>(from), bytes, source_mr_->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {reinterpret_cast<uint64_t>(target_), target_mr_->rkey};
  ibv_send_wr* refused = nullptr;
  must(ibv_post_send(pair.from, &wr, &refused) == 0, "ibv_post_send");
  ibv_wc wc{};
  int got = 0;
  while (got == 0)
    got = ibv_poll_cq(cq_, 1, &wc);
  must(got == 1, "ibv_poll_cq");
  return wc.status;
}

bool Copies::good() {
  memset(source_, ++count_, bytes);
  return write(good_, source_) == IBV_WC_SUCCESS && memcmp(source_, target_, bytes) == 0;
}

bool Copies::bad() {
  const Pair pair = connect();
  const ibv_wc_status status = write(pair, source_ + page);
  disconnect(pair);
  return status == IBV_WC_LOC_PROT_ERR;
}

void Copies::say() {
  const bool well = good();
  const bool refused = bad();
  printf("copies: %s, %s\n", well ? "placed" : "NOT placed", refused ? "refused" : "NOT refused");
  fflush(stdout);
}

} // namespace signals
