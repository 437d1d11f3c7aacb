// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A queue pair in error, whoever put it there: nothing more is executed through it, in either
// direction.
#include "two_programs.h"

#include <cerrno>
#include <utility>

#include <sys/mman.h>

using namespace adverb;
using namespace adverb::test;

namespace {

using Statuses = std::vector<ibv_wc_status>;
Statuses statuses(const std::vector<ibv_wc>& all) {
  Statuses out;
  for (const auto& wc : all)
    out.push_back(wc.status);
  return out;
}

} // namespace

TEST_CASE("a long request to addresses that wrap is refused like a short one", "[qp]") {
  const auto opcode = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ);
  Two two;
  const uint32_t bytes = GENERATE(64, 12 << 10); // of one message, of several
  const size_t end = ~size_t{0} - 3 - two.b.address(0);
  REQUIRE(two.a.post(opcode, 1, 0, bytes, two.b, end, two.b.mr->rkey) == 0);
  const auto done = drain(two, two.a);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_REM_ACCESS_ERR);
  CHECK(two.b.count(observe::Counter::malformed_messages) == 0);
}

TEST_CASE("a queued request that cannot be backed takes the queue pair with it", "[qp]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  REQUIRE(b.receive(31, 0, 40000) == 0);
  REQUIRE(b.receive(32, 0, 40000) == 0);
  const auto was = b.memory;
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, b, 50000, b.mr->rkey) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 2, 0, 40000, b, 0, 0) == 0); // waits, and would need a window
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 3, 0, 64, b, 51000, b.mr->rkey) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 4, 0, 64, b, 0, 0) == 0);
  two.fabric.refuse_regions = ENOMEM;
  const auto done = drain(two, a);
  two.fabric.refuse_regions = 0;
  CHECK(statuses(done) ==
        Statuses{IBV_WC_SUCCESS, IBV_WC_LOC_QP_OP_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR});
  CHECK(a.qp->state == IBV_QPS_ERR);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 5, 0, 64, b, 52000, b.mr->rkey) == 0);
  CHECK(statuses(drain(two, a)) == Statuses{IBV_WC_WR_FLUSH_ERR});
  CHECK(drain(two, b).empty());
  CHECK(memcmp(b.memory.data() + 51000, was.data() + 51000, 2000) == 0);
}

// A receive that is too small: the device fails the queue pair, and only a receive says so.
TEST_CASE("a queue pair that its device has put in error serves nobody and issues nothing",
          "[qp]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  int moves = 0;
  two.fabric.modify = [&] { return ++moves * 0; };
  REQUIRE(a.receive(41, 0, 8) == 0);
  REQUIRE(b.post(IBV_WR_SEND, 1, 0, 64, a, 0, 0) == 0);
  CHECK(statuses(drain(two, a)) == Statuses{IBV_WC_LOC_LEN_ERR});
  CHECK(moves == 0); // the device would raise its last event once more
  const auto was_a = a.memory;
  const auto was_b = b.memory;
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 0, 64, b, 300, b.mr->rkey) == 0);
  CHECK(statuses(drain(two, a)) == Statuses{IBV_WC_WR_FLUSH_ERR});
  CHECK(memcmp(b.memory.data(), was_b.data(), was_b.size()) == 0);

  // The other end knows of it, too: by its own SEND.
  CHECK(statuses(drain(two, b)) == Statuses{IBV_WC_REM_INV_REQ_ERR});
  CHECK(memcmp(a.memory.data(), was_a.data(), was_a.size()) == 0);
}

TEST_CASE("a queue pair that fails by its own request serves nobody", "[qp]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(b, 3);
  REQUIRE(b.post(IBV_WR_RDMA_WRITE, 1, 0, 64, a, 300, a.mr->rkey) == 0); // learns the key
  CHECK(statuses(drain(two, b)) == Statuses{IBV_WC_SUCCESS});
  const auto was = a.memory;
  ibv_mr good = *a.mr;
  a.mr->lkey = 0xBAD;
  REQUIRE(a.post(IBV_WR_SEND, 2, 0, 64, b, 0, 0) == 0);
  a.mr->lkey = good.lkey;
  CHECK(statuses(drain(two, a)) == Statuses{IBV_WC_LOC_PROT_ERR});
  REQUIRE(b.post(IBV_WR_RDMA_WRITE, 3, 0, 64, a, 400, a.mr->rkey) == 0);
  CHECK(statuses(drain(two, b)) == Statuses{IBV_WC_RETRY_EXC_ERR});
  CHECK(memcmp(a.memory.data(), was.data(), was.size()) == 0);
}

TEST_CASE("one that is not reliable serves on in SQE alone", "[qp]") {
  Two two({.type = IBV_QPT_UC});
  two.fabric.knows_sqe = GENERATE(true, false);
  Program& a = two.a;
  Program& b = two.b;
  fill(b, 3);
  const auto was = a.memory;
  const uint32_t good = std::exchange(a.mr->lkey, 0xBAD);
  REQUIRE(a.post(IBV_WR_SEND, 2, 0, 64, b, 0, 0) == 0);
  a.mr->lkey = good;
  CHECK(statuses(drain(two, a)) == Statuses{IBV_WC_LOC_PROT_ERR});
  REQUIRE(b.post(IBV_WR_RDMA_WRITE, 3, 0, 64, a, 400, a.mr->rkey) == 0);
  CHECK(statuses(drain(two, b)) == Statuses{IBV_WC_SUCCESS}); // nobody says otherwise
  const bool landed = memcmp(a.memory.data(), was.data(), was.size()) != 0;
  CHECK(landed == two.fabric.knows_sqe);
}

// A peer's bad request, say: no completion tells.
TEST_CASE("an event or a query tells that the device has put a queue pair in error", "[qp]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  a.qp->state = IBV_QPS_ERR; // by the fabric
  SECTION("an event") {
    two.fabric.event.element.qp = a.qp;
    two.fabric.event.event_type = IBV_EVENT_QP_ACCESS_ERR;
    ibv_async_event event{};
    REQUIRE(a.verbs.get_async_event(a.context, &event) == 0);
  }
  SECTION("a query") {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    REQUIRE(a.verbs.query_qp(a.qp, &attr, IBV_QP_STATE, &init) == 0);
  }
  const auto was = a.memory;
  REQUIRE(b.post(IBV_WR_RDMA_WRITE, 3, 0, 64, a, 400, a.mr->rkey) == 0);
  CHECK(statuses(drain(two, b)) == Statuses{IBV_WC_RETRY_EXC_ERR});
  CHECK(memcmp(a.memory.data(), was.data(), was.size()) == 0);
}

TEST_CASE("an event of before does not touch a queue pair that is well", "[qp]") {
  Two two;
  Program& a = two.a;
  two.fabric.event.element.qp = a.qp;
  two.fabric.event.event_type = IBV_EVENT_QP_FATAL;
  ibv_async_event event{};
  REQUIRE(a.verbs.get_async_event(a.context, &event) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, two.b, 300, two.b.mr->rkey) == 0);
  CHECK(statuses(drain(two, a)) == Statuses{IBV_WC_SUCCESS});
}

TEST_CASE("what was seen of a queue pair is not said of the one it has become meanwhile", "[qp]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  const auto anew = [](Program& p, Program& to) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RESET;
    REQUIRE(p.verbs.modify_qp(p.qp, &attr, IBV_QP_STATE) == 0);
    p.connect(to);
  };
  a.qp->state = IBV_QPS_ERR; // by the fabric
  two.fabric.looked = [&] {  // another thread of the program
    anew(a, b);
    anew(b, a);
  };
  two.fabric.event.element.qp = a.qp;
  two.fabric.event.event_type = IBV_EVENT_QP_ACCESS_ERR;
  ibv_async_event event{};
  REQUIRE(a.verbs.get_async_event(a.context, &event) == 0);
  REQUIRE(a.qp->state == IBV_QPS_RTS);
  two.settle();
  fill(b, 5);
  REQUIRE(b.post(IBV_WR_RDMA_WRITE, 3, 0, 64, a, 400, a.mr->rkey) == 0);
  CHECK(statuses(drain(two, b)) == Statuses{IBV_WC_SUCCESS});
  CHECK(memcmp(a.memory.data() + 400, b.memory.data(), 64) == 0);
}

TEST_CASE("a send queue in SQE serves peers, flushes, and goes on from RTS", "[qp]") {
  Two two({.type = IBV_QPT_UC});
  Program& a = two.a;
  Program& b = two.b;
  const uint32_t good = a.mr->lkey;
  a.mr->lkey = 0xBAD;
  REQUIRE(a.post(IBV_WR_SEND, 1, 0, 64, b, 0, 0) == 0);
  a.mr->lkey = good;
  CHECK(statuses(drain(two, a)) == Statuses{IBV_WC_LOC_PROT_ERR});
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 0, 64, b, 300, b.mr->rkey) == 0);
  CHECK(statuses(drain(two, a)) == Statuses{IBV_WC_WR_FLUSH_ERR});
  REQUIRE(b.post(IBV_WR_RDMA_WRITE, 3, 0, 64, a, 300, a.mr->rkey) == 0);
  CHECK(statuses(drain(two, b)) == Statuses{IBV_WC_SUCCESS});
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  REQUIRE(a.verbs.modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 4, 0, 64, b, 300, b.mr->rkey) == 0);
  CHECK(statuses(drain(two, a)) == Statuses{IBV_WC_SUCCESS});
}

// Posted by another thread while the move is under way, which here is the provider's call.
TEST_CASE("what is queued goes on when a move to SQD is refused", "[qp]") {
  Two two;
  Program& a = two.a;
  two.fabric.modify = [&] {
    REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, two.b, 300, two.b.mr->rkey) == 0);
    return EINVAL;
  };
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;
  CHECK(a.verbs.modify_qp(a.qp, &attr, IBV_QP_STATE) == EINVAL);
  two.fabric.modify = nullptr;
  CHECK(statuses(drain(two, a)) == Statuses{IBV_WC_SUCCESS});
}

// Of two queue pairs between the same programs one's peer is destroyed before it has asked for the
// key.
TEST_CASE("that a peer's queue pair is gone says nothing of its keys", "[qp]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  const auto make = [](Program& p) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = p.cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {8, 8, 1, 1, 0};
    return p.verbs.create_qp(p.pd, &init);
  };
  ibv_qp* const first_a = std::exchange(a.qp, make(a));
  ibv_qp* const first_b = std::exchange(b.qp, make(b));
  a.connect(b);
  b.connect(a);
  two.settle();
  REQUIRE(b.verbs.destroy_qp(first_b) == 0);
  ibv_qp* const second_a = std::exchange(a.qp, first_a);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, b, 300, b.mr->rkey) == 0);
  CHECK(statuses(drain(two, a)) == Statuses{IBV_WC_RETRY_EXC_ERR});
  a.qp = second_a;
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 0, 64, b, 300, b.mr->rkey) == 0);
  CHECK(statuses(drain(two, a)) == Statuses{IBV_WC_SUCCESS});
  REQUIRE(a.verbs.destroy_qp(first_a) == 0);
}

// Its buffer's region is gone when the program, or a RESET, takes it.
TEST_CASE("a message that cannot be delivered ends its queue pair until RESET", "[qp]") {
  const bool polled = GENERATE(true, false);
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  REQUIRE(b.receive(31, 0, 64) == 0);
  REQUIRE(b.receive(32, 64, 64) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 1, 0, 64, b, 0, 0) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 2, 0, 64, b, 0, 0) == 0);
  REQUIRE(b.verbs.dereg_mr(b.mr) == 0);
  const auto was = b.memory;
  if (polled) {
    CHECK(statuses(drain(two, b)) == Statuses{IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR});
    CHECK(b.qp->state == IBV_QPS_ERR);
  }
  CHECK((b.memory == was));
  b.mr = b.verbs.reg_mr(b.pd, b.memory.data(), b.memory.size(), IBV_ACCESS_LOCAL_WRITE);
  ibv_qp_attr attr{};
  REQUIRE(b.verbs.modify_qp(b.qp, &attr, IBV_QP_STATE) == 0);
  REQUIRE(a.verbs.modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
  two.settle();
  b.poll();
  a.connect(b);
  b.connect(a);
  two.settle();
  fill(a, 9);
  REQUIRE(b.receive(33, 0, 64) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 3, 0, 64, b, 0, 0) == 0);
  CHECK(statuses(drain(two, b)) == Statuses{IBV_WC_SUCCESS});
  CHECK(memcmp(b.memory.data(), a.memory.data(), 64) == 0);
}

TEST_CASE("a message longer than the port's longest is refused at home", "[qp]") {
  for (const auto opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    Two two;
    Program& a = two.a;
    Program& b = two.b;
    fill(b, 3);
    fill(a, 5);
    const auto as = a.memory;
    const auto bs = b.memory;
    REQUIRE(a.post(opcode, 1, 0, 64000, b, 0, b.mr->rkey) == 0);
    REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 0, 64, b, 0, b.mr->rkey) == 0);
    CHECK(statuses(drain(two, a)) == Statuses{IBV_WC_LOC_LEN_ERR, IBV_WC_WR_FLUSH_ERR});
    CHECK((a.memory == as));
    CHECK((b.memory == bs));
  }
}

// The device has the pages of a pinned region; but what is copied goes by the address.
TEST_CASE("elements whose memory is gone are refused at home, also those of a pinned region",
          "[qp]") {
  constexpr size_t page = 4096;
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  void* const gone =
      mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(gone != MAP_FAILED);
  ibv_mr* const pinned =
      a.verbs.reg_mr(a.pd, gone, page, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  REQUIRE(pinned != nullptr);
  REQUIRE(mprotect(gone, page, PROT_NONE) == 0);
  const auto was = b.memory;
  ibv_sge sge{reinterpret_cast<uintptr_t>(gone), 64, pinned->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {b.address(0), b.mr->rkey};
  ibv_send_wr* bad = nullptr;
  REQUIRE(model::post_send(*a.verbs.managed(a.qp), &wr, &bad) == 0);
  CHECK(statuses(drain(two, a)) == Statuses{IBV_WC_LOC_PROT_ERR});
  CHECK(a.qp->state == IBV_QPS_ERR);
  CHECK(b.qp->state == IBV_QPS_RTS);
  CHECK(b.memory == was);
  a.verbs.dereg_mr(pinned);
  munmap(gone, page);
}

// All are brought into staging, and wait there for the program's memory. The device is done with
// what stands behind them, and the last of it is not one that it reports.
TEST_CASE("behind a READ for memory that is gone all is flushed", "[qp]") {
  constexpr size_t page = 4096;
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  void* const gone =
      mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(gone != MAP_FAILED);
  ibv_mr* const to = a.verbs.reg_mr(a.pd, gone, page, IBV_ACCESS_LOCAL_WRITE);
  ibv_mr* const from = b.verbs.reg_mr(b.pd, b.memory.data(), b.memory.size(),
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                          IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND);
  REQUIRE(to != nullptr);
  REQUIRE(from != nullptr);
  const auto post = [&](uint64_t id, ibv_wr_opcode opcode, unsigned flags) {
    ibv_sge sge = opcode == IBV_WR_RDMA_READ
                      ? ibv_sge{reinterpret_cast<uintptr_t>(gone), 64, to->lkey}
                      : ibv_sge{a.address(0), 64, a.mr->lkey};
    ibv_send_wr wr{};
    wr.wr_id = id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.wr.rdma = {b.address(0), from->rkey};
    ibv_send_wr* bad = nullptr;
    REQUIRE(model::post_send(*a.verbs.managed(a.qp), &wr, &bad) == 0);
  };
  post(1, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED);
  post(2, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED);
  post(3, IBV_WR_RDMA_WRITE, 0);
  two.settle();
  REQUIRE(mprotect(gone, page, PROT_NONE) == 0);
  CHECK(statuses(drain(two, a)) ==
        Statuses{IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR});
  CHECK(a.qp->state == IBV_QPS_ERR);
  a.verbs.dereg_mr(to);
  b.verbs.dereg_mr(from);
  munmap(gone, page);
}

TEST_CASE("who has proven nothing is waited for a minute, and the device judges then", "[qp]") {
  Two two({}, "unpinned", 1 << 20, transfer::version_sharing, true);
  Program& a = two.a;
  Program& b = two.b;
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, b, 200, b.mr->rkey) == 0);
  two.settle(); // the claim is not answered
  a.bench.service.pass(std::chrono::seconds(59));
  two.settle();
  CHECK(a.poll().empty());
  a.bench.service.pass(std::chrono::seconds(1));
  two.settle();
  const auto done = a.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_REM_ACCESS_ERR);
}
