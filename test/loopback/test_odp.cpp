// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Regions on demand, of a device that pages for RC all but atomics, for UD, and not for UC; and
// that lets 1 MiB be registered otherwise (meson.build).
#include "test_ends.h"

#include <cerrno>
#include <sys/mman.h>

namespace {

constexpr int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                       IBV_ACCESS_REMOTE_ATOMIC;
constexpr size_t bytes = 64 << 20;

EndOptions on_demand(ibv_qp_type type = IBV_QPT_RC) {
  EndOptions options{.type = type};
  options.region_access |= IBV_ACCESS_ON_DEMAND;
  return options;
}

// Addresses at which nothing is mapped, or what a test maps there.
struct Addresses {
  Addresses() { unmap(); }
  ~Addresses() { unmap(); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  void unmap() { REQUIRE(munmap(start, bytes) == 0); }
  void map(char value) {
    REQUIRE(mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                 0) == start);
    start[0] = value;
  }
  char* const start =
      static_cast<char*>(mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
};

} // namespace

TEST_CASE("the device says what it pages for") {
  End end;
  ibv_device_attr_ex attr = {};
  REQUIRE(ibv_query_device_ex(end.context, nullptr, &attr) == 0);
  CHECK(attr.odp_caps.general_caps == IBV_ODP_SUPPORT);
  const auto& caps = attr.odp_caps.per_transport_caps;
  CHECK(caps.rc_odp_caps == (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
                             IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_SRQ_RECV));
  CHECK(caps.uc_odp_caps == 0);
  CHECK(caps.ud_odp_caps ==
        (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV));
}

TEST_CASE("a region on demand may be of any addresses, and nothing of it is locked") {
  End end;
  Addresses at;
  CHECK(ibv_reg_mr(end.pd, at.start, bytes, rights) == nullptr);
  CHECK(errno == EFAULT);
  ibv_mr* mr = ibv_reg_mr(end.pd, at.start, bytes, rights | IBV_ACCESS_ON_DEMAND);
  REQUIRE(mr != nullptr);
  at.map(1);
  CHECK(ibv_reg_mr(end.pd, at.start, bytes, rights) == nullptr);
  CHECK(errno == ENOMEM);
  ibv_sge sge{reinterpret_cast<uint64_t>(at.start), 4096, mr->lkey};
  CHECK(ibv_advise_mr(end.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == 0);
  sge.lkey = end.mr->lkey;
  CHECK(ibv_advise_mr(end.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) != 0);
  CHECK(ibv_dereg_mr(mr) == 0);
}

TEST_CASE("a region on demand is what its addresses hold when it is used") {
  Pair p;
  Addresses at;
  ibv_mr* mr = ibv_reg_mr(p.b.pd, at.start, bytes, rights | IBV_ACCESS_ON_DEMAND);
  REQUIRE(mr != nullptr);
  Address there = p.b.address();
  there.rkey = mr->rkey;
  there.buffer = reinterpret_cast<uint64_t>(at.start);
  for (const char value : {'x', 'y'}) {
    at.map(value);
    REQUIRE(p.a.post(IBV_WR_RDMA_READ, there, 0, 0, 1) == 0);
    CHECK(p.a.completion().status == IBV_WC_SUCCESS);
    CHECK(p.a.buffer[0] == value);
  }
  at.unmap();
  SECTION("a peer meets an access error where there is nothing") {
    REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, there, 0, 0, 8) == 0);
    CHECK(p.a.completion().status == IBV_WC_REM_ACCESS_ERR);
    CHECK(p.b.event().event_type == IBV_EVENT_QP_ACCESS_ERR);
  }
  SECTION("the program itself a protection error") {
    ibv_sge sge{there.buffer, 8, mr->lkey};
    ibv_send_wr wr = {}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    REQUIRE(p.a.receive(0, 64) == 0);
    REQUIRE(ibv_post_send(p.b.qp, &wr, &bad) == 0);
    CHECK(p.b.completion().status == IBV_WC_LOC_PROT_ERR);
  }
  CHECK(ibv_dereg_mr(mr) == 0);
}

TEST_CASE("what the device pages for works on demand, what it does not is refused") {
  SECTION("WRITE and READ") {
    Pair p(on_demand(), on_demand());
    p.a.buffer[0] = 'w';
    REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, p.b.address(), 0, 8, 1) == 0);
    CHECK(p.a.completion().status == IBV_WC_SUCCESS);
    REQUIRE(p.a.post(IBV_WR_RDMA_READ, p.b.address(), 16, 8, 1) == 0);
    CHECK(p.a.completion().status == IBV_WC_SUCCESS);
    CHECK(p.a.buffer[16] == 'w');
  }
  SECTION("receives, and those of SRQs") {
    EndOptions shared = on_demand();
    shared.srq = GENERATE(false, true);
    Pair p(on_demand(), shared);
    REQUIRE(p.b.receive(0, 64) == 0);
    REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 8) == 0);
    CHECK(p.a.completion().status == IBV_WC_SUCCESS);
    CHECK(p.b.completion().status == IBV_WC_SUCCESS);
  }
  SECTION("an atomic of what a peer has on demand") {
    Pair p({}, on_demand());
    REQUIRE(p.a.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, p.b.address(), 0, 1, 0) == 0);
    CHECK(p.a.completion().status == IBV_WC_REM_ACCESS_ERR);
  }
  SECTION("an atomic whose result goes to what is on demand") {
    Pair p(on_demand(), {});
    REQUIRE(p.a.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, p.b.address(), 0, 1, 0) == 0);
    CHECK(p.a.completion().status == IBV_WC_LOC_PROT_ERR);
  }
  SECTION("a SEND by UC") {
    Pair p(on_demand(IBV_QPT_UC), EndOptions{.type = IBV_QPT_UC});
    REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 8) == 0);
    CHECK(p.a.completion().status == IBV_WC_LOC_PROT_ERR);
  }
  SECTION("a receive by UC") {
    Pair p(EndOptions{.type = IBV_QPT_UC}, on_demand(IBV_QPT_UC));
    REQUIRE(p.b.receive(0, 64) == 0);
    REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 8) == 0);
    CHECK(p.b.completion().status == IBV_WC_LOC_PROT_ERR);
  }
}
