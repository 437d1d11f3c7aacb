// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a program's calls see of its completion queue, with adverb's own completions between.
#include "two_programs.h"

#include "model/cq.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <future>

using namespace adverb;
using namespace adverb::test;
using namespace std::chrono_literals;

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

namespace {

// A program's second queue pair, on the same completion queue; the first's place is its own again
// at the end.
struct Second {
  Second(Program& p, Program& other) : p(p), other(other), ps(make(p)), others(make(other)) {
    p.connect(other);
    other.connect(p);
  }
  ~Second() {
    first();
    p.verbs.destroy_qp(ps);
    other.verbs.destroy_qp(others);
  }
  void first() {
    p.qp = ps_first;
    other.qp = others_first;
  }
  void second() {
    p.qp = ps;
    other.qp = others;
  }
  static ibv_qp* make(Program& p) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = p.cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {8, 8, 1, 1, 0};
    return p.qp = p.verbs.create_qp(p.pd, &init);
  }
  Program& p;
  Program& other;
  ibv_qp* ps_first = p.qp;
  ibv_qp* others_first = other.qp;
  ibv_qp* ps;
  ibv_qp* others;
};

} // namespace

TEST_CASE("a queue pair that is stuck does not keep another of its queue waiting", "[cq]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  Second more(a, b);
  two.settle();
  more.first();
  two.fabric.stuck = a.qp->qp_num; // its SEND meets no receive
  REQUIRE(a.post(IBV_WR_SEND, 1, 0, 64, b, 0, 0, 0) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 0, 64, b, 300, b.mr->rkey) == 0);
  two.settle();
  more.second();
  REQUIRE(b.receive(21, 1000, 64) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 3, 0, 64, b, 0, 0, 0) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 4, 0, 64, b, 400, b.mr->rkey) == 0);
  two.settle();
  CHECK(a.poll().empty());
  two.settle();
  const auto done = a.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].wr_id == 4);
}

TEST_CASE("what waits for the device goes on though the program does not poll, however late",
          "[cq]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 7);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, b, 0, b.mr->rkey) == 0);
  REQUIRE(drain(two, a).size() == 1); // both ends know each other
  two.fabric.stuck = a.qp->qp_num;    // its SEND meets no receive
  REQUIRE(a.post(IBV_WR_SEND, 2, 0, 64, b, 0, 0) == 0);
  ibv_wc sent{};
  sent.wr_id = two.fabric.last_send;
  sent.qp_num = a.qp->qp_num;
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 3, 0, 64, b, 300, b.mr->rkey) == 0);
  const auto pass_time = [&two, &a] {
    for (int i = 0; i < 16; ++i) {
      a.bench.service.pass(4ms);
      two.settle();
    }
  };
  const auto has_come = [&a, &b] {
    return std::equal(a.memory.begin(), a.memory.begin() + 64, b.memory.begin() + 300);
  };
  pass_time();
  CHECK_FALSE(has_come());
  FakeFabric::complete(a.cq, sent);
  two.fabric.stuck = 0;
  pass_time();
  CHECK(has_come());
}

// The device has no room for more.
TEST_CASE("a queue pair that finds no room for its marker is asked again", "[cq]") {
  Program::Wanted wanted;
  wanted.cqe = 1 << 10;
  Two two(wanted, "unpinned", wanted.cqe + 1);
  Program& a = two.a;
  Program& b = two.b;
  CHECK(a.cq->cqe == wanted.cqe + 1);
  Second more(a, b);
  two.settle();
  more.first();
  REQUIRE(b.receive(21, 1000, 64) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 1, 0, 64, b, 0, 0, 0) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 0, 64, b, 300, b.mr->rkey) == 0);
  two.settle();
  more.second();
  REQUIRE(b.receive(22, 1000, 64) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 3, 0, 64, b, 0, 0, 0) == 0);
  const uint64_t posted = two.fabric.posted;
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 4, 0, 64, b, 400, b.mr->rkey) == 0);
  two.settle();
  CHECK(two.fabric.posted == posted); // no marker of its own yet
  std::vector<uint64_t> done;
  for (int looks = 0; looks < 4; ++looks, two.settle())
    for (const auto& wc : a.poll())
      done.push_back(wc.wr_id);
  CHECK(done == std::vector<uint64_t>{2, 4});
}

TEST_CASE("a kick that landed before the arm keeps no later one from being sent", "[cq]") {
  Two two(with_channel());
  Program& a = two.a;
  Program& b = two.b;
  Second second(a, b);
  model::Cq& cq = *a.verbs.managed(a.cq);
  const auto write = [&](uint64_t id) { // by software
    REQUIRE(a.post(IBV_WR_RDMA_WRITE, id, 0, 64, b, 0, b.mr->rkey) == 0);
    two.settle();
  };
  REQUIRE(model::req_notify_cq(cq, 0) == 0);
  for (uint64_t id = 1; id <= 4; ++id) { // by the device, in front of the kick
    REQUIRE(b.receive(id, 0, 0) == 0);
    REQUIRE(a.post(IBV_WR_SEND, id, 0, 0, b, 0, 0) == 0);
  }
  two.settle();
  second.first();
  write(11);
  REQUIRE(model::req_notify_cq(cq, 0) == 0);
  const uint64_t before = FakeFabric::events(a.cq);
  write(12);
  SECTION("and the program polls") {
    CHECK(drain(two, a).size() == 6);
    write(13);
  }
  SECTION("and the program sleeps") {}
  CHECK(FakeFabric::events(a.cq) > before);
}

TEST_CASE("what was pushed while the provider was asked is before what it gives", "[cq]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  for (uint64_t id = 1; id <= 2; ++id)
    REQUIRE(b.receive(id, 0, 0) == 0);
  const auto send = [&](uint64_t id) { // by the device, as it stands
    ibv_send_wr wr{};
    ibv_send_wr* bad = nullptr;
    wr.wr_id = id;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    REQUIRE(model::post_send(*a.verbs.managed(a.qp), &wr, &bad) == 0);
  };
  send(0);
  REQUIRE(drain(two, a).size() == 1); // the queue pair is known to the queue
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, b, 0, b.mr->rkey) == 0); // by software
  two.fabric.poll = [&] {
    two.settle();
    send(2);
    two.settle();
  };
  std::array<ibv_wc, 4> wc{};
  REQUIRE(model::poll_cq(*a.verbs.managed(a.cq), 4, wc.data()) == 2);
  CHECK(wc[0].wr_id == 1);
  CHECK(wc[1].wr_id == 2);
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

TEST_CASE("a peer's WRITE does not wait for the end of an extended poll", "[cq]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  REQUIRE(b.receive(21, 0, 64) == 0);
  REQUIRE(b.receive(22, 64, 64) == 0); // both staged, and to be in place before the WRITE
  REQUIRE(a.post(IBV_WR_SEND, 1, 0, 64, b, 0, 0) == 0);
  model::Cq& cq = *b.verbs.managed(b.cq);
  std::promise<void> written;
  std::promise<int> started;
  // In a thread of its own, so that a lock is waited for and not found held by the same thread.
  auto polls = std::async(std::launch::async, [&] {
    ibv_poll_cq_attr attr{};
    const int rc = cq.start_poll(&attr);
    started.set_value(rc);
    written.get_future().wait();
    const uint64_t read = cq.current().wc.wr_id;
    if (rc == 0)
      cq.end_poll();
    return read;
  });
  CHECK(started.get_future().get() == 0);
  REQUIRE(a.post(IBV_WR_SEND, 2, 64, 64, b, 0, 0) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 3, 0, 64, b, 300, b.mr->rkey) == 0);
  two.settle();
  a.poll(2);
  two.settle();
  CHECK(a.poll().size() == 1);
  written.set_value();
  CHECK(polls.get() == 21);
  const auto rest = b.poll();
  REQUIRE(rest.size() == 1);
  CHECK(rest[0].wr_id == 22);
}
