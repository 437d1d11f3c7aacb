// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Messages that stand in staging while something else reaches the bytes they are for.
#include "two_programs.h"

#include <array>
#include <utility>

using namespace adverb;
using namespace adverb::test;

namespace {

constexpr int local = IBV_ACCESS_LOCAL_WRITE;
constexpr int remote = local | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

// One more queue pair of a program, with a completion queue of its own or that of its first, in the
// place of which it is while it lives.
struct Another {
  explicit Another(Program& of, ibv_context* on = nullptr, bool same_cq = false) : p(of) {
    std::swap(p.qp, first);
    if (!same_cq)
      cq = p.verbs.create_cq(on != nullptr ? on : p.context, 16, nullptr, nullptr, 0);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = same_cq ? p.cq : cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {8, 8, 1, 1, 0};
    p.qp = p.verbs.create_qp(p.pd, &init);
    if (!same_cq)
      std::swap(p.cq, cq);
  }
  ~Another() {
    p.verbs.destroy_qp(p.qp);
    if (cq != nullptr) {
      std::swap(p.cq, cq);
      p.verbs.destroy_cq(cq);
    }
    p.qp = first;
  }
  void swap() {
    std::swap(p.qp, first);
    if (cq != nullptr)
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

// By the device's hand it would come first, and be overwritten at the poll.
TEST_CASE("a receive over one that stands in staging stands there, too, and comes after it",
          "[overlap]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  fill(b, 2);
  constexpr uint32_t small = 64;
  constexpr uint32_t large = 20000;
  bool over = true;
  REQUIRE(b.receive(21, 1000, small) == 0);
  SECTION("over it") {
    REQUIRE(b.receive(22, 500, large) == 0);
  }
  SECTION("beside it, in pages of their own") {
    REQUIRE(b.receive(22, 8192, large) == 0);
    over = false;
  }
  CHECK(b.count(observe::Counter::staging_copies) == (over ? 2 : 1));
  REQUIRE(a.post(IBV_WR_SEND, 1, 0, small, b, 0, 0) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 2, 1000, large, b, 0, 0) == 0);
  two.settle();
  const auto done = b.poll();
  REQUIRE(done.size() == 2);
  CHECK(done[0].wr_id == 21);
  CHECK(done[1].byte_len == large);
  CHECK(memcmp(b.memory.data() + (over ? 500 : 8192), a.memory.data() + 1000, large) == 0);
  if (!over)
    CHECK(memcmp(b.memory.data() + 1000, a.memory.data(), small) == 0);
  a.poll();
}

// Another queue pair's, posted before, comes when it is sent: after the small one, here, which
// would still be in staging then.
TEST_CASE("a small receive over one of another queue pair that has a window goes in place, too",
          "[overlap]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  fill(b, 2);
  constexpr uint32_t small = 64;
  constexpr uint32_t large = 20000;
  Another other_a(a, nullptr, true);
  Another other_b(b, nullptr, true);
  a.connect(b);
  b.connect(a);
  two.settle();
  SECTION("over it") {
    REQUIRE(b.receive(22, 500, large) == 0);
    other_a.swap();
    other_b.swap();
    REQUIRE(b.receive(21, 1000, small) == 0);
    CHECK(b.count(observe::Counter::staging_copies) == 0);
    REQUIRE(a.post(IBV_WR_SEND, 1, 0, small, b, 0, 0) == 0);
    REQUIRE(drain(two, a).size() == 1);
    other_a.swap();
    REQUIRE(a.post(IBV_WR_SEND, 2, 1000, large, b, 0, 0) == 0);
    REQUIRE(drain(two, a).size() == 1);
    const auto done = b.poll();
    REQUIRE(done.size() == 2);
    CHECK(done[0].wr_id == 21);
    CHECK(done[1].wr_id == 22);
    CHECK(memcmp(b.memory.data() + 500, a.memory.data() + 1000, large) == 0);
    other_a.swap();
  }
  SECTION("of the same queue pair it stands in staging: its message comes after the other's") {
    REQUIRE(b.receive(22, 500, large) == 0);
    REQUIRE(b.receive(21, 1000, small) == 0);
    CHECK(b.count(observe::Counter::staging_copies) == 1);
    other_a.swap();
    other_b.swap();
  }
  SECTION("where an earlier message is to be copied, too, neither would do") {
    other_a.swap();
    other_b.swap();
    REQUIRE(b.receive(21, 40'000, small) == 0);
    CHECK(b.count(observe::Counter::staging_copies) == 1);
    other_b.swap();
    REQUIRE(b.receive(22, 500, large) == 0);
    other_b.swap();
    CHECK(b.receive(23, 20'000, 25'000) == ENOMEM); // over both
    CHECK(b.receive(24, 20'500, 19'500) == 0);      // between them
    CHECK(b.receive(25, 30'000, 15'000) == 0);      // over the first
    CHECK(b.count(observe::Counter::staging_copies) == 2);
    CHECK(b.receive(26, 1000, small) == 0); // over the second
    CHECK(b.count(observe::Counter::staging_copies) == 2);
  }
  other_a.swap();
  other_b.swap();
}

TEST_CASE("elements of one receive that lie over each other are filled one after the other",
          "[overlap]") {
  Program::Wanted wanted;
  wanted.cap.max_recv_sge = 2;
  Two two(wanted);
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  fill(b, 2);
  constexpr uint32_t small = 64;
  constexpr uint32_t large = 20000;
  std::array<ibv_sge, 2> sges{
      {{b.address(1000), small, b.mr->lkey}, {b.address(500), large, b.mr->lkey}}};
  ibv_recv_wr wr{21, nullptr, sges.data(), 2};
  ibv_recv_wr* bad = nullptr;
  REQUIRE(model::post_recv(*b.verbs.managed(b.qp), &wr, &bad) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 1, 0, small + large, b, 0, 0) == 0);
  two.settle();
  REQUIRE(b.poll().size() == 1);
  CHECK(memcmp(b.memory.data() + 500, a.memory.data() + small, large) == 0);
  a.poll();
}

// The device runs an atomic where a message may stand in staging: who borrowed the bytes asks again
// each time, and has the message put in its place.
TEST_CASE("an atomic meets the message that was sent before it", "[overlap]") {
  Program::Wanted wanted;
  wanted.access |= IBV_ACCESS_REMOTE_ATOMIC;
  Two two(wanted);
  Program& a = two.a;
  Program& b = two.b;
  fill(b, 2);
  const auto add = [&](uint64_t id) {
    ibv_sge sge{a.address(4096), 8, a.mr->lkey};
    ibv_send_wr add_wr{};
    add_wr.wr_id = id;
    add_wr.sg_list = &sge;
    add_wr.num_sge = 1;
    add_wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    add_wr.send_flags = IBV_SEND_SIGNALED;
    add_wr.wr.atomic = {b.address(1000), 1, 0, b.mr->rkey};
    ibv_send_wr* bad = nullptr;
    REQUIRE(model::post_send(*a.verbs.managed(a.qp), &add_wr, &bad) == 0);
    two.settle();
    REQUIRE(drain(two, a).size() == 1);
    uint64_t was = 0;
    memcpy(&was, a.memory.data() + 4096, 8);
    return was;
  };
  const auto message = [&](uint64_t value) {
    memcpy(a.memory.data(), &value, 8);
    REQUIRE(a.post(IBV_WR_SEND, 1, 0, 8, b, 0, 0) == 0);
    REQUIRE(drain(two, a).size() == 1);
  };
  SECTION("of receives that were there before it borrowed") {
    REQUIRE(b.receive(21, 1000, 8) == 0);
    REQUIRE(b.receive(22, 1000, 8) == 0);
    CHECK(b.count(observe::Counter::staging_copies) == 2);
    message(100);
    CHECK(add(2) == 100);
    message(200);
    CHECK(add(3) == 200);
    CHECK(b.count(observe::Counter::responder_grants) == 2);
  }
  SECTION("of receives that are posted while it has them") {
    add(2);
    REQUIRE(b.receive(21, 1000, 8) == 0);
    CHECK(b.count(observe::Counter::staging_copies) == 0);
    message(100);
    CHECK(add(3) == 100);
    CHECK(b.count(observe::Counter::responder_grants) == 1);
  }
  b.poll();
}
