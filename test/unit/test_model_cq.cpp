// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a program's calls see of its completion queue, with adverb's own completions between.
#include "two_programs.h"

using namespace adverb;
using namespace adverb::test;

TEST_CASE("a poll for one looks past completions that are not the program's", "[cq]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  REQUIRE(a.receive(21, 0, 64) == 0);
  REQUIRE(b.receive(22, 0, 64) == 0);
  // Neither reports itself, so the WRITE, which goes another way, waits for a marker.
  REQUIRE(a.post(IBV_WR_SEND, 1, 100, 64, b, 0, 0, 0) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 200, 64, b, 300, b.mr->rkey, 0) == 0);
  two.settle();
  REQUIRE(b.post(IBV_WR_SEND, 3, 100, 64, a, 0, 0, 0) == 0);
  const auto done = a.poll(1);
  REQUIRE(done.size() == 1);
  CHECK(done[0].wr_id == 21);
}

namespace {

ibv_comp_channel channel{};
Program::Wanted with_channel() {
  Program::Wanted wanted;
  wanted.channel = &channel;
  return wanted;
}

} // namespace

TEST_CASE("adverb's own completion wakes a program that sleeps", "[cq]") {
  Two two(with_channel());
  Program& a = two.a;
  Program& b = two.b;
  bool destroy = false;
  SECTION("at once") {}
  SECTION("after its queue could not be destroyed") {
    destroy = true;
  }
  if (destroy)
    CHECK(a.verbs.destroy_cq(a.cq) == EBUSY);
  SECTION("after an unmanaged queue pair kept it from being destroyed") {
    ibv_cq* spare = a.verbs.create_cq(a.context, 4, nullptr, nullptr, 0);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = spare;
    init.qp_type = IBV_QPT_RC;
    ibv_qp* theirs = FakeFabric::real().ibv_create_qp(a.pd, &init);
    CHECK(a.verbs.destroy_cq(spare) == EBUSY);
    CHECK(a.verbs.managed(spare) != nullptr);
    FakeFabric::real().ibv_destroy_qp(theirs);
    CHECK(a.verbs.destroy_cq(spare) == 0);
  }
  const uint64_t before = FakeFabric::events(a.cq);
  REQUIRE(model::req_notify_cq(*a.verbs.managed(a.cq), 0) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, b, 0, b.mr->rkey) == 0);
  two.settle();
  CHECK(FakeFabric::events(a.cq) == before + 1);
  CHECK(a.poll().size() == 1);
}

TEST_CASE("an arm for solicited completions is fired by an error of adverb's own", "[cq]") {
  Two two(with_channel());
  Program& a = two.a;
  Program& b = two.b;
  SECTION("with no other before") {}
  SECTION("with a kick under way") {
    REQUIRE(model::req_notify_cq(*a.verbs.managed(a.cq), 0) == 0);
    REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, b, 0, b.mr->rkey) == 0);
    two.settle();
  }
  // No right to write it: the READ fails here, and the device has nothing to say of it.
  REQUIRE(a.verbs.rereg_mr(a.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                           IBV_ACCESS_REMOTE_READ) == 0);
  const uint64_t before = FakeFabric::events(a.cq);
  REQUIRE(model::req_notify_cq(*a.verbs.managed(a.cq), 1) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_READ, 2, 0, 64, b, 0, b.mr->rkey) == 0);
  two.settle();
  CHECK(FakeFabric::events(a.cq) == before + 1);
  const auto done = a.poll();
  REQUIRE_FALSE(done.empty());
  CHECK(done.back().wr_id == 2);
  CHECK(done.back().status == IBV_WC_LOC_PROT_ERR);
  CHECK(done.back().opcode == IBV_WC_RDMA_READ);
}
