// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a queue pair leaves behind when it is reset or destroyed: what its device would leave, under
// the program's own numbers.
#include "two_programs.h"

#include "model/cq.h"
#include "model/srq.h"

using namespace adverb;
using namespace adverb::test;

namespace {

// a's queue pair is gone or reset; Two's destructor meets a fresh one.
void destroy(Program& p) {
  REQUIRE(p.verbs.destroy_qp(p.qp) == 0);
  p.qp = nullptr;
}
void make(Program& p, ibv_srq* srq = nullptr) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = p.cq;
  init.srq = srq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {8, srq != nullptr ? 0U : 8U, 1, 1, 0};
  p.qp = p.verbs.create_qp(p.pd, &init);
  REQUIRE(p.qp != nullptr);
}
void reset(Program& p) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  REQUIRE(p.verbs.modify_qp(p.qp, &attr, IBV_QP_STATE) == 0);
}

std::vector<uint64_t> numbers(const std::vector<ibv_wc>& all) {
  std::vector<uint64_t> out;
  for (const auto& wc : all)
    out.push_back(wc.wr_id);
  return out;
}
using Numbers = std::vector<uint64_t>;

} // namespace

TEST_CASE("what a device drops with its queue pair is not handed out afterwards", "[qp]") {
  const bool drops = GENERATE(false, true);
  const bool destroyed = GENERATE(false, true);
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  two.fabric.drops_completions = drops;
  REQUIRE(b.receive(31, 0, 64) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 1, 0, 64, b, 0, 0) == 0);                  // by the device
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 0, 64, b, 200, b.mr->rkey) == 0); // by adverb
  a.verbs.managed(a.cq)->try_settle(); // as the responder does, or a timer
  two.settle();
  REQUIRE(b.receive(32, 0, 64) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 3, 0, 64, b, 0, 0) == 0); // still in the device's queue
  if (destroyed)
    destroy(a);
  else
    reset(a);
  CHECK(numbers(a.poll()) == (drops ? Numbers{} : Numbers{1, 2, 3}));
  if (destroyed)
    make(a);
}

TEST_CASE("what comes while a queue pair is taken down meets none, not one that refuses", "[qp]") {
  enum How { error, to_reset, destroyed };
  const How how = GENERATE(error, to_reset, destroyed);
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, b, 200, b.mr->rkey) == 0);
  two.settle();
  REQUIRE(a.poll().size() == 1);
  const auto arrives = [&] {
    REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 0, 64, b, 300, b.mr->rkey) == 0);
    for (int i = 0; i < 3; ++i)
      two.joint.carry();
    CHECK(a.poll().empty());
    two.fabric.modify = nullptr;
    two.fabric.destroy = nullptr;
    return 0;
  };
  two.fabric.modify = arrives;
  two.fabric.destroy = arrives;
  if (how == error) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    REQUIRE(b.verbs.modify_qp(b.qp, &attr, IBV_QP_STATE) == 0);
  } else if (how == to_reset) {
    reset(b);
  } else {
    destroy(b);
  }
  b.bench.service.pass(std::chrono::milliseconds(1));
  two.settle();
  const auto done = a.poll();
  if (how == destroyed)
    make(b);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_RETRY_EXC_ERR);
  CHECK(b.memory[300] == 0);
}

TEST_CASE("what is flushed while the queue pair goes bears the program's number", "[qp]") {
  const bool same_number = GENERATE(false, true);
  Two two;
  Program& a = two.a;
  two.fabric.flushes_at_destroy = true;
  REQUIRE(a.receive(41, 0, 64) == 0);
  REQUIRE(a.receive(42, 0, 64) == 0);
  const uint32_t number = a.qp->qp_num;
  destroy(a);
  if (same_number) {
    two.fabric.next_qpn = number;
    make(a);
    REQUIRE(a.receive(51, 0, 64) == 0);
  }
  CHECK(numbers(a.poll()) == Numbers{41, 42});
  if (!same_number)
    make(a);
  two.fabric.flushes_at_destroy = false;
}

TEST_CASE("a late completion is nobody's, though the next queue pair has the number", "[qp]") {
  const bool same_number = GENERATE(false, true);
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  REQUIRE(a.receive(41, 0, 64) == 0);
  ibv_wc receive{};
  receive.wr_id = test::FakeFabric::last_receive(a.qp);
  receive.opcode = IBV_WC_RECV;
  receive.qp_num = a.qp->qp_num;
  ibv_wc send{};
  send.qp_num = a.qp->qp_num;
  two.fabric.stalled = true;
  // Fenced, it does not pass through: of a number of the program's nobody could tell.
  REQUIRE(a.post(IBV_WR_SEND, 1, 0, 64, b, 0, 0, IBV_SEND_SIGNALED | IBV_SEND_FENCE) == 0);
  send.wr_id = two.fabric.last_send;
  destroy(a);
  CHECK(a.poll().empty());
  if (same_number)
    two.fabric.next_qpn = send.qp_num;
  make(a);
  a.connect(b);
  two.settle();
  REQUIRE(a.receive(51, 0, 64) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 2, 0, 64, b, 0, 0) == 0);
  test::FakeFabric::complete(a.cq, receive);
  test::FakeFabric::complete(a.cq, send);
  CHECK(a.poll().empty());
}

TEST_CASE("completions of a queue pair that adverb does not manage are passed on as they are",
          "[qp]") {
  Two two;
  ibv_wc wc{};
  wc.qp_num = 0xABCDE;
  wc.wr_id = uint64_t{1} << 63 | 5;
  test::FakeFabric::complete(two.a.cq, wc);
  CHECK(numbers(two.a.poll()) == Numbers{wc.wr_id});
}

TEST_CASE("a shared receive that a dropped completion took is free again", "[qp]") {
  const bool drops = GENERATE(false, true);
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  two.fabric.drops_completions = drops;
  ibv_srq_init_attr init{};
  init.attr = {4, 1, 0};
  ibv_srq* srq = b.verbs.create_srq(b.pd, &init);
  destroy(b);
  make(b, srq);
  reset(a);
  a.connect(b);
  b.connect(a);
  two.settle();
  ibv_sge sge{b.address(0), 64, b.mr->lkey};
  ibv_recv_wr wr{};
  wr.wr_id = 61;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  REQUIRE(model::post_srq_recv(*b.verbs.managed(srq), &wr, &bad) == 0);
  CHECK(b.verbs.managed(srq)->staged() == 1);
  REQUIRE(a.post(IBV_WR_SEND, 1, 0, 64, b, 0, 0) == 0);
  destroy(b);
  CHECK(b.verbs.managed(srq)->staged() == 0);
  CHECK(numbers(b.poll()) == (drops ? Numbers{} : Numbers{61}));
  REQUIRE(b.verbs.destroy_srq(srq) == 0);
  make(b);
}

TEST_CASE("what a shared receive queue hears late of a connection is not counted to the next",
          "[qp]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  const auto connect = [&] {
    reset(a);
    a.connect(b);
    b.connect(a);
    two.settle();
  };
  ibv_srq_init_attr init{};
  init.attr = {8, 1, 0};
  ibv_srq* srq = b.verbs.create_srq(b.pd, &init);
  destroy(b);
  make(b, srq);
  connect();
  const auto receive = [&](uint64_t id, size_t at) {
    ibv_sge sge{b.address(at), 64, b.mr->lkey};
    ibv_recv_wr wr{id, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    REQUIRE(model::post_srq_recv(*b.verbs.managed(srq), &wr, &bad) == 0);
  };
  receive(61, 0);
  receive(62, 64);
  ibv_wc late{}; // of a message that has taken the second

  late.wr_id = two.fabric.last_shared_receive;
  late.opcode = IBV_WC_RECV;
  late.byte_len = 24;
  late.qp_num = b.qp->qp_num;
  reset(b);
  CHECK(b.poll().empty());
  FakeFabric::complete(b.cq, late);
  const auto old = b.poll();
  REQUIRE(numbers(old) == Numbers{62});
  CHECK(old[0].byte_len == 24);

  connect();
  REQUIRE(a.post(IBV_WR_RDMA_WRITE_WITH_IMM, 2, 0, 48, b, 300, b.mr->rkey) == 0);
  two.settle();
  const auto done = b.poll();
  REQUIRE(numbers(done) == Numbers{61});
  CHECK(done[0].opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(done[0].byte_len == 48);
  destroy(b);
  REQUIRE(b.verbs.destroy_srq(srq) == 0);
  make(b);
}

TEST_CASE("a queue pair that has moved says so, though its peer cannot be asked for yet", "[qp]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  reset(a);
  two.joint.out_of_memory = true;
  a.connect(b); // each move succeeds
  two.joint.out_of_memory = false;
  memset(a.memory.data(), 7, 64);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, b, 200, b.mr->rkey) == 0);
  const auto done = drain(two, a);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(b.memory[263] == 7);
}

TEST_CASE("a peer is asked when a one-sided request wants it, or was asked on that path before",
          "[qp]") {
  const bool met = GENERATE(false, true);
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  two.joint.met = met;
  reset(a);
  two.joint.binds = 0;
  a.connect(b);
  CHECK(two.joint.binds == (met ? 1 : 0));
  REQUIRE(b.receive(31, 0, 64) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 1, 64, 64, b, 0, 0) == 0);
  CHECK(numbers(drain(two, a)) == Numbers{1});
  CHECK(two.joint.binds == (met ? 1 : 0));
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 64, 64, b, 200, b.mr->rkey) == 0);
  CHECK(numbers(drain(two, a)) == Numbers{2});
  CHECK(two.joint.binds == 1);
}

TEST_CASE("a queue pair that cannot be managed is not left behind", "[qp]") {
  const policy::Loaded loaded = policy::load_profile("unpinned");
  FakeFabric fabric;
  Joint joint;
  joint.out_of_threads = true;
  CHECK_THROWS_AS(Program(fabric, joint, *loaded.policy, {}), std::bad_alloc);
  CHECK(fabric.queue_pairs() == 0);
}

TEST_CASE("an event of adverb's own queue pair is not the program's while it goes", "[qp]") {
  ibv_comp_channel channel{};
  Program::Wanted wanted;
  wanted.channel = &channel;
  Two two(wanted);
  Program& b = two.b;
  ibv_qp* const kick = two.fabric.made_last; // made when its queue pair was connected
  REQUIRE(kick != b.qp);
  destroy(b);
  ibv_async_event got{};
  two.fabric.destroy = [&] { // a thread of the program waits for events
    two.fabric.event.element.qp = kick;
    two.fabric.event.event_type = IBV_EVENT_QP_FATAL;
    REQUIRE(b.verbs.get_async_event(b.context, &got) == 0);
  };
  REQUIRE(b.verbs.destroy_cq(b.cq) == 0);
  two.fabric.destroy = nullptr;
  CHECK(two.fabric.acknowledged == 1);
  CHECK(got.element.qp == nullptr);
  b.cq = b.verbs.create_cq(b.context, 16, nullptr, nullptr, 0);
  make(b);
}

// Some providers' completions of raw packets name the half of a queue pair that they are of.
TEST_CASE("completions of raw packets are known by what was posted", "[qp]") {
  Program::Wanted wanted;
  wanted.type = IBV_QPT_RAW_PACKET;
  Two two(wanted);
  two.fabric.stalled = true;
  Program& a = two.a;
  const auto complete = [&](uint64_t number, ibv_wc_opcode opcode, uint32_t bytes) {
    ibv_wc wc{};
    wc.wr_id = number;
    wc.opcode = opcode;
    wc.byte_len = bytes;
    wc.qp_num = a.qp->qp_num + 0x1000;
    FakeFabric::complete(a.cq, wc);
  };
  REQUIRE(a.receive(21, 0, 64) == 0);
  REQUIRE(a.receive(22, 64, 64) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 1, 100, 64, two.b, 0, 0) == 0);
  complete(two.fabric.last_send, IBV_WC_SEND, 0);
  complete(FakeFabric::last_receive(a.qp), IBV_WC_RECV, 60);
  const auto done = a.poll();
  REQUIRE(numbers(done) == Numbers{1, 22});
  CHECK(done[1].byte_len == 60);
  // Nobody else's.
  complete(two.fabric.last_send, IBV_WC_SEND, 0);
  complete(uint64_t{1} << 63 | 12345, IBV_WC_RECV, 60);
  CHECK(a.poll().size() == 2);
}
