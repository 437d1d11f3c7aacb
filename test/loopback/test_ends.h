// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Two connected ends for the device's own tests.
#pragma once
#include "../unit/catch.h"

#include <chrono>
#include <cstring>
#include <infiniband/verbs.h>
#include <memory>
#include <vector>

struct EndOptions {
  ibv_qp_type type = IBV_QPT_RC;
  uint32_t send_wr = 64, recv_wr = 64, inline_data = 128;
  int cqe = 256;
  int region_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                      IBV_ACCESS_REMOTE_ATOMIC;
  unsigned qp_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  bool srq = false, channel = false, extended = false;
  uint8_t rnr_retry = 7, retry_cnt = 1, timeout = 10;
  size_t bytes = 1 << 16;
};

struct Address {
  uint32_t qpn, psn, rkey;
  uint64_t buffer;
};

class End {
public:
  explicit End(const EndOptions& options = {}) : options(options), buffer(options.bytes) {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    REQUIRE(count >= 1);
    context = ibv_open_device(list[0]);
    REQUIRE(context != nullptr);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    if (options.channel)
      channel = ibv_create_comp_channel(context);
    ibv_cq_init_attr_ex cq_init = {};
    cq_init.cqe = static_cast<uint32_t>(options.cqe);
    cq_init.channel = channel;
    cq_init.wc_flags = IBV_WC_STANDARD_FLAGS;
    cq_ex = ibv_create_cq_ex(context, &cq_init);
    REQUIRE(cq_ex != nullptr);
    cq = ibv_cq_ex_to_cq(cq_ex);
    if (options.srq) {
      ibv_srq_init_attr srq_init = {};
      srq_init.attr.max_wr = options.recv_wr;
      srq_init.attr.max_sge = 4;
      srq = ibv_create_srq(pd, &srq_init);
      REQUIRE(srq != nullptr);
    }
    make_qp();
    mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), options.region_access);
    REQUIRE(mr != nullptr);
  }

  ~End() {
    if (qp != nullptr)
      CHECK(ibv_destroy_qp(qp) == 0);
    if (mr != nullptr)
      CHECK(ibv_dereg_mr(mr) == 0);
    if (srq != nullptr)
      CHECK(ibv_destroy_srq(srq) == 0);
    CHECK(ibv_destroy_cq(cq) == 0);
    if (channel != nullptr)
      CHECK(ibv_destroy_comp_channel(channel) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(context) == 0);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  void make_qp() {
    ibv_qp_init_attr_ex init = {};
    init.send_cq = init.recv_cq = cq;
    init.srq = srq;
    init.qp_type = options.type;
    init.cap = {options.send_wr, options.recv_wr, 4, 4, options.inline_data};
    init.comp_mask = IBV_QP_INIT_ATTR_PD;
    init.pd = pd;
    if (options.extended) {
      init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND |
                            IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
                            IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    }
    qp = ibv_create_qp_ex(context, &init);
    REQUIRE(qp != nullptr);
  }

  Address address() const {
    return {qp->qp_num, qp->qp_num & 0xffff, mr->rkey, reinterpret_cast<uint64_t>(buffer.data())};
  }

  int to_init() {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = options.qp_access;
    attr.qkey = 0x1234;
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                             (options.type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
  }

  int to_rtr(const Address& peer) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer.qpn;
    attr.rq_psn = peer.psn;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 1;
    fill_route(attr.ah_attr);
    int mask = IBV_QP_STATE;
    if (options.type != IBV_QPT_UD)
      mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (options.type == IBV_QPT_RC)
      mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    return ibv_modify_qp(qp, &attr, mask);
  }

  int to_rts() {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = address().psn;
    attr.max_rd_atomic = 4;
    attr.timeout = options.timeout;
    attr.retry_cnt = options.retry_cnt;
    attr.rnr_retry = options.rnr_retry;
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (options.type == IBV_QPT_RC)
      mask |= IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
    return ibv_modify_qp(qp, &attr, mask);
  }

  void connect(const Address& peer) {
    REQUIRE(to_init() == 0);
    REQUIRE(to_rtr(peer) == 0);
    REQUIRE(to_rts() == 0);
  }

  int move(ibv_qp_state state, int more = 0) {
    ibv_qp_attr attr = {};
    attr.qp_state = state;
    attr.en_sqd_async_notify = 1;
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | more);
  }

  void fill_route(ibv_ah_attr& route) const {
    route.is_global = 1;
    route.port_num = 1;
    route.grh.sgid_index = 1;
    REQUIRE(ibv_query_gid(context, 1, 1, &route.grh.dgid) == 0);
  }

  ibv_sge sge(size_t offset, uint32_t length) const {
    return {reinterpret_cast<uint64_t>(buffer.data()) + offset, length, mr->lkey};
  }

  int post(ibv_wr_opcode opcode, const Address& peer, size_t from, size_t to, uint32_t length,
           unsigned flags = IBV_SEND_SIGNALED, uint64_t id = 1) {
    ibv_sge part = sge(from, length);
    ibv_send_wr wr = {}, *bad = nullptr;
    wr.wr_id = id;
    wr.sg_list = &part;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.imm_data = 0x77;
    wr.wr.rdma.remote_addr = peer.buffer + to;
    wr.wr.rdma.rkey = peer.rkey;
    return ibv_post_send(qp, &wr, &bad);
  }

  int atomic(ibv_wr_opcode opcode, const Address& peer, size_t to, uint64_t compare_add,
             uint64_t swap = 0) {
    ibv_sge part = sge(0, 8);
    ibv_send_wr wr = {}, *bad = nullptr;
    wr.sg_list = &part;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.atomic.remote_addr = peer.buffer + to;
    wr.wr.atomic.rkey = peer.rkey;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
    return ibv_post_send(qp, &wr, &bad);
  }

  int receive(size_t offset, uint32_t length, uint64_t id = 100) {
    ibv_sge part = sge(offset, length);
    ibv_recv_wr wr = {}, *bad = nullptr;
    wr.wr_id = id;
    wr.sg_list = &part;
    wr.num_sge = 1;
    return srq != nullptr ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
  }

  // The next completion; a REQUIRE fails after ten seconds without one.
  ibv_wc completion() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    ibv_wc wc = {};
    while (ibv_poll_cq(cq, 1, &wc) == 0)
      if (std::chrono::steady_clock::now() > until)
        FAIL("no completion came");
    return wc;
  }

  bool quiet() {
    ibv_wc wc;
    return ibv_poll_cq(cq, 1, &wc) == 0;
  }

  ibv_async_event event() {
    ibv_async_event got = {};
    REQUIRE(ibv_get_async_event(context, &got) == 0);
    ibv_ack_async_event(&got);
    return got;
  }

  EndOptions options;
  std::vector<char> buffer;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq_ex* cq_ex = nullptr;
  ibv_cq* cq = nullptr;
  ibv_srq* srq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
};

struct Pair {
  explicit Pair(const EndOptions& left = {}, const EndOptions& right = {}) : a(left), b(right) {
    a.connect(b.address());
    b.connect(a.address());
  }
  explicit Pair(ibv_qp_type type) : Pair(EndOptions{.type = type}, EndOptions{.type = type}) {}
  End a, b;
};
