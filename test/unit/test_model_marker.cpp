// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How adverb finds out that unsignaled requests are done: by nothing that the peer's queue pair
// need not allow.
#include "two_programs.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>

using namespace adverb;
using namespace adverb::test;
using namespace std::chrono_literals;

namespace {

// Programs whose queue pairs allow nothing else to their peers.
Program::Wanted allowing(unsigned access) {
  Program::Wanted wanted;
  wanted.cap.max_send_wr = 32;
  wanted.access = access;
  return wanted;
}

int add_one(Program& a, uint64_t id, size_t at, Program& b, size_t there, unsigned flags,
            uint32_t bytes = 8) {
  ibv_sge sge{a.address(at), bytes, a.mr->lkey};
  ibv_send_wr wr{};
  wr.wr_id = id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.send_flags = flags;
  wr.wr.atomic.remote_addr = b.address(there);
  wr.wr.atomic.compare_add = 1;
  wr.wr.atomic.rkey = b.mr->rkey;
  ibv_send_wr* bad = nullptr;
  return model::post_send(*a.verbs.managed(a.qp), &wr, &bad);
}

uint64_t word(const Program& p, size_t at) {
  uint64_t value = 0;
  memcpy(&value, p.memory.data() + at, sizeof value);
  return value;
}

constexpr size_t page = 4096;

} // namespace

TEST_CASE("what a request asked that was given back keeps no other waiting", "[marker]") {
  Two two(allowing(IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_WRITE));
  Program& a = two.a;
  Program& b = two.b;
  REQUIRE(add_one(a, 1, 0, b, 0, IBV_SEND_SIGNALED) == 0); // its peer's key is known from now on
  REQUIRE(drain(two, a).size() == 1);
  ibv_sge sges[2] = {{a.address(64), 8, a.mr->lkey}, {a.address(128), 8, a.mr->lkey}};
  ibv_send_wr wr[2] = {};
  wr[0].wr_id = 2;
  wr[0].opcode = IBV_WR_SEND;
  wr[0].next = &wr[1];
  wr[1].wr_id = 3;
  wr[1].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr[1].wr.atomic = {b.address(2 * page), 1, 0, b.mr->rkey};
  for (size_t i = 0; i < 2; ++i)
    wr[i].sg_list = &sges[i], wr[i].num_sge = 1, wr[i].send_flags = IBV_SEND_SIGNALED;
  two.fabric.refuse_post = 1;
  ibv_send_wr* bad = nullptr;
  CHECK(model::post_send(*a.verbs.managed(a.qp), wr, &bad) == ENOMEM);
  CHECK(bad == wr);
  // The answer to what the one had asked is not this one's, and not waited for.
  const bool comes_first = GENERATE(false, true);
  if (comes_first)
    two.settle();
  REQUIRE(add_one(a, 4, 0, b, 3 * page, IBV_SEND_SIGNALED) == 0);
  REQUIRE(add_one(a, 5, 0, b, 4 * page, IBV_SEND_SIGNALED) == 0);
  const auto done = drain(two, a);
  REQUIRE(done.size() == 2);
  for (const auto& wc : done)
    CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(word(b, 2 * page) == 0);
  CHECK(word(b, 3 * page) == 1);
  CHECK(word(b, 4 * page) == 1);
}

TEST_CASE("what an atomic brings comes to its place though the program does not poll", "[marker]") {
  Two two(allowing(IBV_ACCESS_REMOTE_ATOMIC));
  Program& a = two.a;
  Program& b = two.b;
  const auto bytes = std::array<unsigned char, 8>{9, 8, 7, 6, 5, 4, 3, 2};
  std::ranges::copy(bytes, b.memory.begin() + page);
  const unsigned flags = GENERATE(unsigned{IBV_SEND_SIGNALED}, 0U);
  REQUIRE(add_one(a, 1, 64, b, page, flags) == 0);
  for (int i = 0; i < 16; ++i) {
    a.bench.service.pass(4ms);
    two.settle();
  }
  CHECK(std::ranges::equal(bytes, std::span(a.memory).subspan(64, 8)));
}

TEST_CASE("unsignaled atomics on many pages need no other right", "[marker]") {
  Two two(allowing(IBV_ACCESS_REMOTE_ATOMIC));
  Program& a = two.a;
  Program& b = two.b;
  constexpr size_t pages = 9;
  for (size_t i = 0; i < pages; ++i)
    for (size_t again = 0; again < 2; ++again)
      REQUIRE(add_one(a, i, 64 * i + 8 * again, b, page * i,
                      i + again == pages ? unsigned{IBV_SEND_SIGNALED} : 0U) == 0);
  const auto done = drain(two, a);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(done[0].wr_id == pages - 1);
  for (size_t i = 0; i < pages; ++i) {
    INFO(i);
    CHECK(word(b, page * i) == 2);
    CHECK(word(a, 64 * i + 8) == 1);
  }
  // The room in the completion queue is free again.
  CHECK(a.poll().empty());
  CHECK(a.qp->state == IBV_QPS_RTS);
}

namespace {

// Memory of the program's that nobody else reaches: not pinned, whatever the policy says of others.
struct Local {
  explicit Local(Program& p)
      : p(p), pinned(p.mr),
        mr(p.verbs.reg_mr(p.pd, p.memory.data(), p.memory.size(), IBV_ACCESS_LOCAL_WRITE)) {
    p.mr = mr;
  }
  ~Local() {
    p.mr = pinned;
    p.verbs.dereg_mr(mr);
  }
  Program& p;
  ibv_mr* pinned;
  ibv_mr* mr;
};

} // namespace

TEST_CASE("a fenced message behind what reads needs no other right", "[marker]") {
  const bool atomic = GENERATE(false, true);
  const bool signaled = GENERATE(false, true);
  const bool pinned = GENERATE(false, true); // where it comes to
  Two two(allowing(atomic ? IBV_ACCESS_REMOTE_ATOMIC : IBV_ACCESS_REMOTE_READ), "default");
  Program& a = two.a;
  Program& b = two.b;
  const Local local(a);
  if (pinned)
    a.mr = local.pinned;
  fill(b, 3);
  REQUIRE(b.receive(21, 2000, 8) == 0);
  const unsigned flags = signaled ? unsigned{IBV_SEND_SIGNALED} : 0U;
  const uint64_t expected = word(b, 800);
  if (atomic)
    REQUIRE(add_one(a, 1, 0, b, 800, flags) == 0);
  else
    REQUIRE(a.post(IBV_WR_RDMA_READ, 1, 0, 8, b, 800, b.mr->rkey, flags) == 0);
  a.mr = local.mr;
  REQUIRE(a.post(IBV_WR_SEND, 2, 0, 8, b, 0, 0, IBV_SEND_SIGNALED | IBV_SEND_FENCE) == 0);
  const auto done = drain(two, a);
  REQUIRE(done.size() == (signaled ? 2 : 1));
  CHECK(done.back().wr_id == 2);
  CHECK(done.back().status == IBV_WC_SUCCESS);
  const auto received = drain(two, b);
  REQUIRE(received.size() == 1);
  CHECK(received[0].status == IBV_WC_SUCCESS);
  CHECK(word(b, 2000) == expected);
}

TEST_CASE("an atomic's element may be longer than what it brings", "[atomic]") {
  const char* const profile = GENERATE("default", "unpinned");
  Two two(allowing(IBV_ACCESS_REMOTE_ATOMIC), profile);
  Program& a = two.a;
  Program& b = two.b;
  const Local local(a);
  fill(a, 5);
  const uint64_t behind = word(a, 8);
  REQUIRE(add_one(a, 1, 0, b, 800, IBV_SEND_SIGNALED, 16) == 0);
  const auto done = drain(two, a);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(word(a, 0) == 0);
  CHECK(word(a, 8) == behind);
  CHECK(word(b, 800) == 1);
}
