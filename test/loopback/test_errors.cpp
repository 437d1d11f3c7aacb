// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What is refused, by whom, and what that does to both queue pairs.
#include "test_ends.h"

#include <sys/mman.h>

namespace {

ibv_qp_state state_of(End& end) {
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  REQUIRE(ibv_query_qp(end.qp, &attr, IBV_QP_STATE, &init) == 0);
  return attr.qp_state;
}

void expect_refused(Pair& p, ibv_wc_status status, ibv_event_type event) {
  CHECK(p.a.completion().status == status);
  CHECK(state_of(p.a) == IBV_QPS_ERR);
  const ibv_async_event got = p.b.event();
  CHECK(got.event_type == event);
  CHECK(got.element.qp == p.b.qp);
  CHECK(state_of(p.b) == IBV_QPS_ERR);
}

} // namespace

TEST_CASE("a wrong key, range, right or PD is a remote access error") {
  EndOptions no_write;
  no_write.region_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  SECTION("key") {
    Pair p;
    Address wrong = p.b.address();
    wrong.rkey ^= 1;
    REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, wrong, 0, 0, 8) == 0);
    expect_refused(p, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  }
  SECTION("end") {
    Pair p;
    REQUIRE(p.a.post(IBV_WR_RDMA_READ, p.b.address(), 0, p.b.buffer.size() - 7, 8) == 0);
    expect_refused(p, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  }
  SECTION("right") {
    Pair p({}, no_write);
    REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, p.b.address(), 0, 0, 8) == 0);
    expect_refused(p, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  }
  SECTION("PD") {
    Pair p;
    ibv_pd* other = ibv_alloc_pd(p.b.context);
    ibv_mr* mr = ibv_reg_mr(other, p.b.buffer.data(), 4096, p.b.options.region_access);
    Address wrong = p.b.address();
    wrong.rkey = mr->rkey;
    REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, wrong, 0, 0, 8) == 0);
    expect_refused(p, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    CHECK(ibv_dealloc_pd(other) == EBUSY);
    CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(ibv_dealloc_pd(other) == 0);
  }
  SECTION("unbound window") {
    Pair p;
    ibv_mw* mw = ibv_alloc_mw(p.b.pd, IBV_MW_TYPE_1);
    REQUIRE(mw != nullptr);
    CHECK(mw->rkey != p.b.mr->rkey);
    Address wrong = p.b.address();
    wrong.rkey = mw->rkey;
    REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, wrong, 0, 0, 8) == 0);
    expect_refused(p, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    CHECK(ibv_dealloc_mw(mw) == 0);
  }
  SECTION("after deregistration") {
    Pair p;
    const Address stale = p.b.address();
    CHECK(ibv_dereg_mr(p.b.mr) == 0);
    p.b.mr = nullptr;
    REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, stale, 0, 0, 8) == 0);
    expect_refused(p, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  }
}

TEST_CASE("what the QP does not allow is an invalid request") {
  EndOptions deaf;
  deaf.qp_access = 0;
  Pair p({}, deaf);
  REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, p.b.address(), 0, 0, 8) == 0);
  expect_refused(p, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
}

TEST_CASE("a misaligned atomic is an invalid request") {
  Pair p;
  REQUIRE(p.a.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, p.b.address(), 4, 1) == 0);
  expect_refused(p, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
}

TEST_CASE("a bad local key is a local protection error and flushes what follows") {
  Pair p;
  const Address peer = p.b.address();
  ibv_sge good = p.a.sge(0, 8), bad_sge = good;
  bad_sge.lkey ^= 1;
  ibv_send_wr wr[3] = {}, *bad = nullptr;
  for (int i = 0; i < 3; ++i) {
    wr[i].wr_id = static_cast<uint64_t>(i);
    wr[i].sg_list = i == 1 ? &bad_sge : &good;
    wr[i].num_sge = 1;
    wr[i].opcode = IBV_WR_RDMA_WRITE;
    wr[i].next = i < 2 ? &wr[i + 1] : nullptr;
    wr[i].wr.rdma.remote_addr = peer.buffer;
    wr[i].wr.rdma.rkey = peer.rkey;
  }
  REQUIRE(p.a.receive(0, 8, 55) == 0);
  REQUIRE(ibv_post_send(p.a.qp, wr, &bad) == 0);
  ibv_wc wc = p.a.completion();
  CHECK(wc.wr_id == 1);
  CHECK(wc.status == IBV_WC_LOC_PROT_ERR);
  wc = p.a.completion();
  CHECK(wc.wr_id == 2);
  CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
  wc = p.a.completion();
  CHECK(wc.wr_id == 55);
  CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
  REQUIRE(p.a.receive(0, 8, 56) == 0); // and what is posted later
  CHECK(p.a.completion().wr_id == 56);
}

TEST_CASE("a receive too small fails both sides") {
  Pair p;
  REQUIRE(p.b.receive(0, 4) == 0);
  REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 8) == 0);
  CHECK(p.a.completion().status == IBV_WC_REM_INV_REQ_ERR);
  CHECK(p.b.completion().status == IBV_WC_LOC_LEN_ERR);
}

TEST_CASE("without a receive RC waits for one, or gives up after rnr_retry") {
  SECTION("waits") {
    Pair p;
    REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 8) == 0);
    CHECK(p.a.quiet());
    REQUIRE(p.b.receive(0, 8) == 0);
    CHECK(p.a.completion().status == IBV_WC_SUCCESS);
    CHECK(p.b.completion().status == IBV_WC_SUCCESS);
  }
  SECTION("gives up") {
    EndOptions options;
    options.rnr_retry = 2;
    Pair p(options, {});
    REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 8) == 0);
    CHECK(p.a.completion().status == IBV_WC_RNR_RETRY_EXC_ERR);
    CHECK(state_of(p.b) == IBV_QPS_RTS);
  }
}

TEST_CASE("a peer that is not there is a retry error, after the timers") {
  End a, b;
  a.connect(b.address());
  REQUIRE(b.to_init() == 0);
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, b.address(), 0, 0, 8) == 0);
  CHECK(a.completion().status == IBV_WC_RETRY_EXC_ERR);
  // 4.096 us << 10, twice
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::microseconds(8300));
}

TEST_CASE("memory the owner unmapped is an error, not a crash") {
  Pair p;
  const size_t bytes = 8192;
  void* gone = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  SECTION("remote") {
    ibv_mr* mr = ibv_reg_mr(p.b.pd, gone, bytes, p.b.options.region_access);
    munmap(gone, bytes);
    Address target = p.b.address();
    target.buffer = reinterpret_cast<uint64_t>(gone);
    target.rkey = mr->rkey;
    REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, target, 0, 0, 8) == 0);
    expect_refused(p, IBV_WC_REM_OP_ERR, IBV_EVENT_QP_FATAL);
    CHECK(ibv_dereg_mr(mr) == 0);
  }
  SECTION("local") {
    ibv_mr* mr = ibv_reg_mr(p.a.pd, gone, bytes, IBV_ACCESS_LOCAL_WRITE);
    munmap(gone, bytes);
    ibv_sge part = {reinterpret_cast<uint64_t>(gone), 8, mr->lkey};
    ibv_send_wr wr = {}, *bad = nullptr;
    wr.sg_list = &part;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.wr.rdma.remote_addr = p.b.address().buffer;
    wr.wr.rdma.rkey = p.b.mr->rkey;
    REQUIRE(ibv_post_send(p.a.qp, &wr, &bad) == 0);
    CHECK(p.a.completion().status == IBV_WC_LOC_PROT_ERR);
    CHECK(state_of(p.b) == IBV_QPS_RTS);
    CHECK(ibv_dereg_mr(mr) == 0);
  }
}

TEST_CASE("registration answers as the kernel's") {
  End end;
  char* page = static_cast<char*>(
      mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  munmap(page + 4096, 4096);
  CHECK(ibv_reg_mr(end.pd, page, 8192, IBV_ACCESS_LOCAL_WRITE) == nullptr);
  CHECK(errno == EFAULT);
  CHECK(ibv_reg_mr(end.pd, page, 4096, IBV_ACCESS_REMOTE_WRITE) == nullptr);
  CHECK(errno == EINVAL);
  mprotect(page, 4096, PROT_READ);
  CHECK(ibv_reg_mr(end.pd, page, 4096, IBV_ACCESS_LOCAL_WRITE) == nullptr);
  CHECK(errno == EFAULT);
  ibv_mr* mr = ibv_reg_mr(end.pd, page, 4096, 0);
  REQUIRE(mr != nullptr);
  CHECK(ibv_dereg_mr(mr) == 0);
  munmap(page, 4096);
}

TEST_CASE("a full queue refuses with ENOMEM and names the request") {
  EndOptions small;
  small.send_wr = 2;
  small.recv_wr = 2;
  small.timeout = 20;
  End end(small), peer;
  end.connect(peer.address()); // the peer is not connected: requests stay queued
  CHECK(end.post(IBV_WR_RDMA_WRITE, peer.address(), 0, 0, 8) == 0);
  CHECK(end.post(IBV_WR_RDMA_WRITE, peer.address(), 0, 0, 8) == 0);
  CHECK(end.post(IBV_WR_RDMA_WRITE, peer.address(), 0, 0, 8) == ENOMEM);
  CHECK(end.receive(0, 8) == 0);
  CHECK(end.receive(0, 8) == 0);
  CHECK(end.receive(0, 8) == ENOMEM);
}

TEST_CASE("busy objects cannot be destroyed") {
  Pair p;
  CHECK(ibv_destroy_cq(p.a.cq) == EBUSY);
  CHECK(ibv_dealloc_pd(p.a.pd) == EBUSY);
}
