// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Passthrough requests whose bytes go out of an unpinned region: something stands in for their
// elements, of which the device sees nothing but that, and it is given back in time.
#include "two_programs.h"

#include <cerrno>
#include <cstdlib>
#include <new>

using namespace adverb;
using namespace adverb::test;

// Of this program, one allocation of so many bytes is refused; 0: none.
namespace {
thread_local size_t refused_bytes = 0;
}
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* memory = bytes == refused_bytes ? nullptr : malloc(bytes);
  if (memory == nullptr) {
    refused_bytes = 0;
    throw std::bad_alloc();
  }
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t /*bytes*/) noexcept {
  operator delete(memory);
}

namespace {

constexpr unsigned told = IBV_SEND_SIGNALED;
constexpr uint32_t few = 64;        // bytes: staged
constexpr uint32_t many = 32 << 10; // bytes: a window
constexpr size_t rounds = 600;      // more than there are blocks in a slab

int post(Two& two, uint64_t id, uint32_t bytes, unsigned flags = told, size_t at = 0) {
  return two.a.post(IBV_WR_SEND, id, at, bytes, two.b, 0, 0, flags);
}

// The first ones find things out, and make what stays.
void warm(Two& two, uint32_t bytes) {
  for (int i = 0; i < 2; ++i) {
    REQUIRE(two.b.receive(0, 32 << 10, bytes) == 0);
    REQUIRE(post(two, 1, bytes) == 0);
    REQUIRE(drain(two, two.a).size() == 1);
    REQUIRE(drain(two, two.b).size() == 1);
  }
}

void land(Program& p, uint64_t id, ibv_wc_status status = IBV_WC_SUCCESS) {
  ibv_wc wc{};
  wc.wr_id = id;
  wc.status = status;
  wc.qp_num = p.qp->qp_num;
  FakeFabric::complete(p.cq, wc);
}

} // namespace

TEST_CASE("a message from an unpinned region passes through, with the bytes it was posted with",
          "[lent]") {
  const uint32_t bytes = GENERATE(few, many);
  Two two;
  warm(two, bytes);
  fill(two.a, 5);
  const std::vector<unsigned char> sent(two.a.memory.begin(), two.a.memory.begin() + bytes);
  REQUIRE(two.b.receive(7, 32 << 10, bytes) == 0);
  const uint64_t calls = two.fabric.post_calls;
  REQUIRE(post(two, 42, bytes) == 0);
  CHECK(two.fabric.last_send == 42); // the program's own number
  CHECK(two.fabric.post_calls == calls + 1);
  const auto done = two.a.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].wr_id == 42);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  REQUIRE(drain(two, two.b).size() == 1);
  CHECK(std::equal(sent.begin(), sent.end(), two.b.memory.begin() + (32 << 10)));
}

TEST_CASE("what stands in is given back when the report is heard", "[lent]") {
  const uint32_t bytes = GENERATE(few, many);
  const bool silent = GENERATE(false, true); // but one in four
  Two two;
  warm(two, bytes);
  const uint64_t registered = two.fabric.registered;
  for (size_t i = 0; i < rounds; ++i) {
    REQUIRE(two.b.receive(i, 32 << 10, bytes) == 0);
    REQUIRE(post(two, i, bytes, silent && i % 4 != 3 ? 0U : told) == 0);
    CHECK(two.a.poll().size() == (silent && i % 4 != 3 ? 0U : 1U));
    REQUIRE(drain(two, two.b).size() == 1);
  }
  CHECK(two.fabric.registered == registered);
}

TEST_CASE("nothing is lent to a request that the provider refuses", "[lent]") {
  Two two;
  warm(two, few);
  const uint64_t registered = two.fabric.registered;
  for (size_t i = 0; i < rounds; ++i) {
    two.fabric.refuse_post = 1;
    REQUIRE(post(two, i, few) == ENOMEM);
  }
  CHECK(two.fabric.registered == registered);
  REQUIRE(two.b.receive(0, 32 << 10, few) == 0);
  REQUIRE(post(two, 9, few) == 0);
  CHECK(two.a.poll().size() == 1);
}

TEST_CASE("lent requests count against what the queue was said to hold", "[lent]") {
  Two two;
  warm(two, few);
  two.fabric.stalled = true;
  for (uint64_t id = 0; id < 8; ++id)
    REQUIRE(post(two, id, few, id == 3 || id == 7 ? told : 0U) == 0);
  CHECK(post(two, 8, few) == ENOMEM);
  land(two.a, 3);
  CHECK(two.a.poll().size() == 1);
  for (uint64_t id = 8; id < 12; ++id)
    CHECK(post(two, id, few, id == 11 ? told : 0U) == 0);
  CHECK(post(two, 12, few) == ENOMEM);
}

TEST_CASE("the end of a queue pair gives back what stood in for its requests", "[lent]") {
  const uint32_t bytes = GENERATE(few, many);
  const int end = GENERATE(0, 1, 2);
  Two two;
  warm(two, bytes);
  Program& a = two.a;
  uint64_t registered = 0;
  for (size_t round = 0; round < rounds / 8; ++round) {
    two.fabric.stalled = true;
    for (uint64_t id = 0; id < 8; ++id)
      REQUIRE(post(two, id, bytes, id % 2 == 0 ? told : 0U) == 0);
    two.fabric.stalled = false;
    ibv_qp_attr attr{};
    if (end == 0) {
      attr.qp_state = IBV_QPS_RESET;
      REQUIRE(a.verbs.modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
    } else if (end == 1) {
      REQUIRE(a.verbs.destroy_qp(a.qp) == 0);
      ibv_qp_init_attr init{};
      init.send_cq = init.recv_cq = a.cq;
      init.qp_type = IBV_QPT_RC;
      init.cap = {8, 8, 1, 1, 0};
      a.qp = a.verbs.create_qp(a.pd, &init);
    } else {
      land(a, 0, IBV_WC_RETRY_EXC_ERR);
      for (uint64_t id = 1; id < 8; ++id)
        land(a, id, IBV_WC_WR_FLUSH_ERR);
      CHECK(drain(two, a).size() == 8);
      attr.qp_state = IBV_QPS_RESET;
      REQUIRE(a.verbs.modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
    }
    a.connect(two.b);
    two.settle();
    if (round == 0)
      registered = two.fabric.registered;
  }
  CHECK(two.fabric.registered == registered);
}

TEST_CASE("a region may end while a request of it is with the device", "[lent]") {
  const uint32_t bytes = GENERATE(few, many);
  Two two;
  warm(two, bytes);
  Program& a = two.a;
  two.fabric.stalled = true;
  REQUIRE(post(two, 1, bytes) == 0);
  const uint64_t registered = two.fabric.registered;
  REQUIRE(a.verbs.dereg_mr(a.mr) == 0);
  CHECK((two.fabric.registered < registered) == (bytes == many));
  land(a, 1);
  CHECK(a.poll().size() == 1);
  a.mr = a.verbs.reg_mr(a.pd, a.memory.data(), a.memory.size(), IBV_ACCESS_LOCAL_WRITE);
  two.fabric.stalled = false;
  REQUIRE(two.b.receive(0, 32 << 10, bytes) == 0);
  REQUIRE(post(two, 2, bytes) == 0);
  CHECK(a.poll().size() == 1);
}

TEST_CASE("what must wait for a lent request waits", "[lent]") {
  Two two;
  warm(two, few);
  const auto write = [&](uint64_t id) { // by message
    return two.a.post(IBV_WR_RDMA_WRITE, id, 0, few, two.b, 128, two.b.mr->rkey);
  };
  REQUIRE(write(1) == 0);
  REQUIRE(drain(two, two.b).empty());
  REQUIRE(drain(two, two.a).size() == 1);
  fill(two.a, 5);
  two.fabric.stalled = true;
  REQUIRE(post(two, 1, few, 0) == 0);
  const uint64_t posted = two.fabric.posted;
  REQUIRE(write(2) == 0);
  CHECK(two.fabric.posted == posted + 1); // the marker
  CHECK(drain(two, two.b).empty());
  CHECK(drain(two, two.a).empty());
  CHECK(two.b.memory[128] == 0);
  land(two.a, two.fabric.last_send);
  size_t done = drain(two, two.a).size();
  CHECK(drain(two, two.b).empty());
  done += drain(two, two.a).size();
  CHECK(done == 1);
  CHECK(two.b.memory[128] == two.a.memory[0]);
}

TEST_CASE("elements without bytes count among those of a request", "[lent]") {
  Two two;
  warm(two, few);
  const ibv_mr* mr = two.a.mr;
  ibv_sge elements[] = {{two.a.address(0), few, mr->lkey}, {0, 0, mr->lkey}};
  ibv_send_wr wr{};
  wr.sg_list = elements;
  wr.num_sge = 2; // the queue pair was made for one
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = told;
  ibv_send_wr* bad = nullptr;
  CHECK(model::post_send(*two.a.verbs.managed(two.a.qp), &wr, &bad) == EINVAL);
  CHECK(bad == &wr);
}

TEST_CASE("where memory is short a request takes the long way, and the next goes on", "[lent]") {
  Two two;
  REQUIRE(two.b.receive(0, 32 << 10, many) == 0);
  refused_bytes = sizeof(registration::Window);
  REQUIRE(post(two, 1, many) == 0);
  CHECK(refused_bytes == 0);
  CHECK(drain(two, two.a).size() == 1);
  CHECK(drain(two, two.b).size() == 1);
  REQUIRE(two.b.receive(0, 32 << 10, many) == 0);
  REQUIRE(post(two, 2, many) == 0);
  CHECK(drain(two, two.a).size() == 1);
}
