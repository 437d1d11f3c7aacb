// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Messages that stand in staging while something else reaches the bytes they are for.
#include "two_programs.h"

#include <utility>

using namespace adverb;
using namespace adverb::test;

namespace {

constexpr int local = IBV_ACCESS_LOCAL_WRITE;
constexpr int remote = local | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

// One more queue pair of a program, with a completion queue of its own, in the place of its first
// while it lives.
struct Another {
  explicit Another(Program& of, ibv_context* on = nullptr) : p(of) {
    std::swap(p.qp, first);
    cq = p.verbs.create_cq(on != nullptr ? on : p.context, 16, nullptr, nullptr, 0);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {8, 8, 1, 1, 0};
    p.qp = p.verbs.create_qp(p.pd, &init);
    std::swap(p.cq, cq);
  }
  ~Another() {
    p.verbs.destroy_qp(p.qp);
    std::swap(p.cq, cq);
    p.verbs.destroy_cq(cq);
    p.qp = first;
  }
  void swap() {
    std::swap(p.qp, first);
    std::swap(p.cq, cq);
  }
  Program& p;
  ibv_qp* first = nullptr;
  ibv_cq* cq = nullptr;
};

} // namespace

// Who has seen its message complete knows that it is in its place.
TEST_CASE("a message is in its place before a request of another queue pair is served",
          "[overlap]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  fill(b, 2);
  REQUIRE(b.receive(21, 1000, 64) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 1, 100, 64, b, 0, 0) == 0);
  REQUIRE(drain(two, a).size() == 1);
  {
    Another other_a(a);
    Another other_b(b);
    a.connect(b);
    b.connect(a);
    two.settle();
    SECTION("that writes there") {
      REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 300, 8, b, 1032, b.mr->rkey) == 0);
      REQUIRE(drain(two, a).size() == 1);
    }
    SECTION("that reads there") {
      REQUIRE(a.post(IBV_WR_RDMA_READ, 2, 5000, 64, b, 1000, b.mr->rkey) == 0);
      REQUIRE(drain(two, a).size() == 1);
      CHECK(memcmp(a.memory.data() + 5000, a.memory.data() + 100, 64) == 0);
      memcpy(b.memory.data() + 1032, a.memory.data() + 300, 8);
    }
  }
  const auto done = b.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].wr_id == 21);
  CHECK(memcmp(b.memory.data() + 1000, a.memory.data() + 100, 32) == 0);
  CHECK(memcmp(b.memory.data() + 1032, a.memory.data() + 300, 8) == 0);
  CHECK(memcmp(b.memory.data() + 1040, a.memory.data() + 140, 24) == 0);
}

TEST_CASE("a message is in its place before peers reach it through the device", "[overlap]") {
  Two two({}, "default");
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  std::vector<unsigned char> buffer(4096);
  ibv_mr* const first =
      std::exchange(b.mr, b.verbs.reg_mr(b.pd, b.memory.data(), b.memory.size(), local));
  b.verbs.dereg_mr(first); // from here on peers reach none of it
  REQUIRE_FALSE(two.fabric.reaches(b.mr->lkey, b.memory.data()));
  REQUIRE(b.receive(21, 1000, 64) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 1, 100, 64, b, 0, 0) == 0);
  REQUIRE(drain(two, a).size() == 1);
  ibv_mr* pinned = nullptr;
  SECTION("by a region that is registered now") {
    pinned = b.verbs.reg_mr(b.pd, b.memory.data(), 4096, remote);
  }
  SECTION("by one that is changed now") {
    pinned = b.verbs.reg_mr(b.pd, buffer.data(), buffer.size(), remote);
    REQUIRE(b.verbs.rereg_mr(pinned, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, b.memory.data(),
                             4096, 0) == 0);
  }
  REQUIRE(two.fabric.reaches(pinned->rkey, b.memory.data()));
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 300, 8, b, 1032, pinned->rkey) == 0);
  REQUIRE(drain(two, a).size() == 1);
  CHECK(b.poll().size() == 1);
  CHECK(memcmp(b.memory.data() + 1000, a.memory.data() + 100, 32) == 0);
  CHECK(memcmp(b.memory.data() + 1032, a.memory.data() + 300, 8) == 0);
  b.verbs.dereg_mr(pinned);
}
