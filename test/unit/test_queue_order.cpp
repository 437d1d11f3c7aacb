// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which request may go before which: lanes, markers, fences, and order "relaxed".
#include "queue_bench.h"

using namespace adverb;
using namespace adverb::test;

TEST_CASE("requests that go one way are posted by one call, and retire in order", "[queue]") {
  Bench b;
  CHECK(b.post_list({IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}).why == 0);
  CHECK(b.device.calls == 1);
  REQUIRE(b.device.posted.size() == 3);
  CHECK(b.queue.all_issued());
  b.land(2); // RC completes in order: the others are done, too
  CHECK(b.statuses() == Statuses{success, success, success});
  CHECK(b.completions[0].wr_id == 1000);
  CHECK(b.ring.empty());
}

TEST_CASE("another lane is taken only when the device's is empty, and a marker sees to that",
          "[queue]") {
  Bench b;
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  CHECK_FALSE(b.soft.busy());
  REQUIRE(b.device.posted.size() == 2);
  CHECK(b.device.posted[1].wr_id == (queue::marker_bit | 0));
  CHECK(b.queue.waits_for_device());
  b.land(queue::marker_bit | 0);
  CHECK(b.soft.busy());
  CHECK(b.completions.empty()); // the first was unsignaled, the marker is nobody's
  b.answer(1);
  CHECK(b.statuses() == Statuses{success});
}

TEST_CASE("the device waits for a software lane, and relaxed WRITEs for nobody", "[queue]") {
  for (const Order order : {Order::strict, Order::relaxed}) {
    Bench b(order);
    b.become_virtual();
    b.post(IBV_WR_RDMA_WRITE);
    b.become_real();
    b.post(IBV_WR_RDMA_WRITE);
    CHECK(b.device.posted.size() == (order == Order::relaxed ? 1 : 0));
    b.post(IBV_WR_SEND);
    CHECK(b.device.posted.size() == (order == Order::relaxed ? 1 : 0));
    b.answer(0);
    CHECK(b.device.posted.size() == 2);
    b.land(2);
    CHECK(b.statuses() == Statuses{success, success, success});
  }
}

TEST_CASE("what overtook an unsignaled WRITE has the device say that that is done", "[queue]") {
  Bench b(Order::relaxed);
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  REQUIRE(b.soft.busy());
  b.answer(1);
  CHECK(b.completions.empty());
  REQUIRE(b.device.posted.size() == 2);
  CHECK(b.device.posted[1].wr_id == (queue::marker_bit | 0));
  CHECK(b.queue.waits_for_device());
  b.queue.turn(); // one is enough
  CHECK(b.device.posted.size() == 2);
  b.land(queue::marker_bit | 0);
  CHECK(b.statuses() == Statuses{success});
  CHECK(b.ring.empty());
}

TEST_CASE("behind an error nothing succeeds, whatever it overtook", "[queue]") {
  Bench b(Order::relaxed);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.become_real();
  b.post(IBV_WR_RDMA_WRITE);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  REQUIRE(b.device.posted.size() == 1);
  SECTION("the device's") {
    b.land(1, IBV_WC_REM_ACCESS_ERR);
    REQUIRE(b.device.posted.size() == 2); // the last is flushed
    CHECK(b.device.posted[1].wr_id == 2);
    b.land(2, flushed);
    b.answer(0); // was before it
    CHECK(b.statuses() == Statuses{success, IBV_WC_REM_ACCESS_ERR, flushed});
  }
  SECTION("the peer's") {
    b.queue.replay(b.ring.at(0), Fault::peer);
    b.queue.turn();
    CHECK_FALSE(b.soft.busy());
    CHECK(b.device.posted.size() == 1); // completions come in the order of posting
    b.land(1);
    REQUIRE(b.device.posted.size() == 2);
    b.land(0, IBV_WC_REM_ACCESS_ERR);
    REQUIRE(b.device.posted.size() == 3);
    b.land(2, flushed);
    CHECK(b.statuses() == Statuses{IBV_WC_REM_ACCESS_ERR, flushed, flushed});
  }
}

TEST_CASE("what an overtaking request's failure leaves is not taken to be done with it",
          "[queue]") {
  Bench b(Order::relaxed);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_real();
  b.post(IBV_WR_RDMA_WRITE, false);
  REQUIRE(b.device.posted.size() == 1); // has overtaken the first
  b.queue.replay(b.ring.at(0), Fault::peer);
  b.queue.turn();
  REQUIRE(b.device.posted.size() == 2);
  const uint64_t marker = b.device.posted[1].wr_id;
  REQUIRE((marker & queue::marker_bit) != 0);
  b.land(1, IBV_WC_RETRY_EXC_ERR);
  b.land(marker, flushed);
  REQUIRE(b.device.posted.size() == 3);
  CHECK(b.device.posted[2].wr_id == 0);
  b.land(0, flushed);
  REQUIRE(b.statuses() == Statuses{flushed, IBV_WC_RETRY_EXC_ERR}); // in the order of posting
  CHECK(b.completions[0].wr_id == 1000);
}

TEST_CASE("a refused marker is told by the first that had to wait, whatever passed it", "[queue]") {
  Bench b(Order::relaxed);
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE); // passes it
  REQUIRE(b.soft.busy());
  b.post(IBV_WR_RDMA_READ); // and this waits
  REQUIRE(b.device.posted.size() == 2);
  b.land(b.device.posted[1].wr_id, IBV_WC_RETRY_EXC_ERR);
  CHECK_FALSE(b.soft.busy());
  REQUIRE(b.device.posted.size() == 4);
  b.land(1, flushed);
  b.land(2, flushed);
  CHECK(b.statuses() == Statuses{IBV_WC_RETRY_EXC_ERR, flushed});
}

TEST_CASE("a fenced request waits for what READs bring", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_READ);
  const uint64_t from = b.ring.tail();
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_FENCE;
  REQUIRE(b.ring.append(wr) == 0);
  b.queue.turn(from);
  CHECK(b.ring.at(1).stage == Stage::queued);
  b.answer(0);
  CHECK(b.ring.at(1).stage == Stage::carried);
}

TEST_CASE("one that went another way is not posted before what passed it is done", "[queue]") {
  Bench b(Order::relaxed);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_real();
  b.post(IBV_WR_RDMA_WRITE); // passes it
  REQUIRE(b.device.posted.size() == 1);
  b.queue.again(b.ring.at(0)); // its key is the device's, too
  b.queue.turn();
  CHECK(b.device.posted.size() == 1);
  SECTION("it is, and the device says when the earlier one is") {
    b.land(1);
    REQUIRE(b.device.posted.size() == 3);
    CHECK(b.device.posted[1].wr_id == 0);
    CHECK(b.device.posted[2].wr_id == (queue::marker_bit | 0));
    CHECK(b.completions.empty());
    b.land(queue::marker_bit | 0);
    CHECK(b.statuses() == Statuses{success});
  }
  SECTION("it fails, and the earlier one has not begun") {
    b.land(1, IBV_WC_REM_ACCESS_ERR);
    REQUIRE(b.device.posted.size() == 2);
    b.land(0, flushed);
    CHECK(b.statuses() == Statuses{flushed, IBV_WC_REM_ACCESS_ERR});
  }
  CHECK(b.ring.empty());
}
