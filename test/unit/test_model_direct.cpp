// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The short ways of the send queue: what passes through, what goes direct, and what of it the queue
// must know all the same when something else has to wait for it.
#include "queue_bench.h"

using namespace adverb;
using namespace adverb::test;

namespace {

constexpr unsigned signaled = IBV_SEND_SIGNALED;

struct List {
  std::vector<ibv_send_wr> wr;
  ibv_send_wr* bad = nullptr;
  explicit List(std::initializer_list<std::pair<ibv_wr_opcode, unsigned>> requests,
                uint64_t first = 1) {
    for (const auto& [opcode, flags] : requests) {
      ibv_send_wr one{};
      one.wr_id = first++;
      one.opcode = opcode;
      one.send_flags = flags;
      wr.push_back(one);
    }
    for (size_t i = 1; i < wr.size(); ++i)
      wr[i - 1].next = &wr[i];
  }
};

bool post_passthrough(Bench& b, List& list, int expected = 0) {
  if (!b.passthrough.open() && !b.queue.open_passthrough())
    return false;
  const int rc = b.passthrough.post(list.wr.data(), &list.bad, false);
  if (rc == queue::PassthroughSends::not_passthrough)
    return false;
  CHECK(rc == expected);
  return true;
}

bool post_passthrough(Bench& b, List&& list, int expected = 0) {
  return post_passthrough(b, list, expected);
}

// One of them has succeeded.
void landed(Bench& b) {
  if (!b.passthrough.on_completion_polled())
    b.queue.passthrough_landed();
}

// Who has to do with more than passthrough requests finds in the lane what is in flight.
bool busy(Bench& b) {
  b.queue.turn();
  return b.lane.busy();
}

bool reads(Bench& b) {
  b.queue.turn();
  return b.lane.reads();
}

// A request of the software lane's, which must not pass what the device has.
void post_software(Bench& b, ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE) {
  b.become_virtual();
  b.post(opcode);
}

} // namespace

TEST_CASE("a list passes through: as it is, by one call, and leaves nothing in the ring",
          "[direct]") {
  Bench b;
  CHECK(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, 0}, {IBV_WR_SEND, signaled}}, 7)));
  CHECK(b.device.calls == 1);
  REQUIRE(b.device.posted.size() == 2);
  CHECK(b.device.posted[0].wr_id == 7);
  CHECK(b.device.posted[1].wr_id == 8);
  CHECK(b.ring.empty());
  CHECK(b.lane.receives() == 1);
}

TEST_CASE("what must not pass passthrough requests waits until all have reported", "[direct]") {
  Bench b;
  REQUIRE(
      post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}, {IBV_WR_RDMA_WRITE, signaled}})));
  REQUIRE(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, 0}, {IBV_WR_RDMA_WRITE, signaled}})));
  post_software(b);
  CHECK(b.device.posted.size() == 4); // the last one reports: no marker
  landed(b);
  landed(b);
  CHECK_FALSE(b.soft.busy());
  landed(b);
  CHECK(b.soft.busy());
}

TEST_CASE("a marker stands in where the last passthrough request does not report", "[direct]") {
  Bench b;
  REQUIRE(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}, {IBV_WR_RDMA_WRITE, 0}})));
  post_software(b);
  REQUIRE(b.device.posted.size() == 3);
  const uint64_t marker = b.device.posted[2].wr_id;
  CHECK((marker & queue::marker_bit) != 0);
  landed(b);
  CHECK_FALSE(b.soft.busy());
  b.land(marker);
  CHECK(b.soft.busy());
}

TEST_CASE("a request of the ring's that reports stands for the passthrough ones before it",
          "[direct]") {
  Bench b;
  REQUIRE(post_passthrough(b, List({{IBV_WR_RDMA_READ, 0}})));
  b.post(IBV_WR_SEND);
  CHECK(reads(b));
  CHECK_FALSE(post_passthrough(b, List({{IBV_WR_SEND, signaled}}))); // it would pass it
  b.land(0);
  CHECK_FALSE(busy(b));
  CHECK_FALSE(reads(b));
}

TEST_CASE("passthrough READs and atomics count as what a fence waits for", "[direct]") {
  for (const auto opcode : {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    Bench b;
    REQUIRE(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}})));
    CHECK_FALSE(reads(b));
    REQUIRE(post_passthrough(b, List({{opcode, signaled}})));
    CHECK(reads(b));
    landed(b);
    CHECK(reads(b));
    landed(b);
    CHECK_FALSE(busy(b));
  }
}

TEST_CASE("of a passthrough list that is refused, those before are with the device", "[direct]") {
  Bench b;
  b.device.refuse = 2;
  List list({{IBV_WR_RDMA_WRITE, signaled}, {IBV_WR_SEND, signaled}, {IBV_WR_SEND, signaled}});
  CHECK(post_passthrough(b, list, ENOMEM));
  CHECK(list.bad == &list.wr[1]);
  CHECK(b.lane.receives() == 0);
  b.device.refuse.reset();
  post_software(b);
  CHECK_FALSE(b.soft.busy());
  landed(b);
  CHECK(b.soft.busy());
  b.answer(0);

  Bench none;
  none.device.refuse = 1;
  CHECK(post_passthrough(none, List({{IBV_WR_RDMA_WRITE, signaled}}), ENOMEM));
  CHECK_FALSE(busy(none));
}

TEST_CASE("nothing passes through that adverb could not tell or would have to stop", "[direct]") {
  SECTION("a wr_id that looks like one of adverb's") {
    for (const auto bit : {queue::number_bit, queue::marker_bit, queue::receive_bit}) {
      Bench b;
      CHECK_FALSE(
          post_passthrough(b, List({{IBV_WR_SEND, signaled}, {IBV_WR_SEND, signaled}}, bit | 5)));
      CHECK(b.device.calls == 0);
    }
  }
  SECTION("a key that is virtual, or is not known") {
    Bench b;
    b.become_virtual();
    CHECK_FALSE(post_passthrough(b, List({{IBV_WR_SEND, signaled}, {IBV_WR_RDMA_READ, signaled}})));
    CHECK(b.device.calls == 0);
  }
  SECTION("while the queue is paused or stopped, or in error") {
    Bench b;
    b.queue.pause(true);
    CHECK_FALSE(post_passthrough(b, List({{IBV_WR_SEND, signaled}})));
    b.queue.pause(false);
    b.queue.stop();
    CHECK_FALSE(post_passthrough(b, List({{IBV_WR_SEND, signaled}})));
    b.queue.resume();
    b.queue.passthrough_failed();
    CHECK_FALSE(post_passthrough(b, List({{IBV_WR_SEND, signaled}})));
    CHECK(b.device.calls == 0);
  }
  SECTION("with order relaxed, where others may pass it") {
    Bench b(Order::relaxed);
    CHECK_FALSE(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}})));
  }
  SECTION("malformed ones, which the ring refuses") {
    Bench b;
    List list({{IBV_WR_SEND, signaled}});
    list.wr[0].num_sge = -1;
    CHECK_FALSE(post_passthrough(b, list));
    List tso({{IBV_WR_TSO, signaled}});
    CHECK_FALSE(post_passthrough(b, tso));
  }
}

TEST_CASE("whether a key is real is remembered until the peer may have said otherwise",
          "[direct]") {
  Bench b;
  REQUIRE(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}})));
  REQUIRE(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}})));
  CHECK(b.asked_real == 1);
  b.become_virtual();
  CHECK_FALSE(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}})));
  CHECK_FALSE(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}})));
  CHECK(b.asked_real == 2);
  b.become_real();
  CHECK(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}})));
  CHECK(b.asked_real == 3);
  // These forget it, for with the link goes what `changes` lies in.
  b.queue.stop();
  b.queue.resume();
  CHECK(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}})));
  b.queue.on_gone();
  CHECK(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}})));
  b.queue.clear();
  CHECK(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}})));
  CHECK(b.asked_real == 6);
  b.become_virtual();
  CHECK_FALSE(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}})));
  b.queue.on_gone();
  CHECK_FALSE(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}})));
  CHECK(b.asked_real == 8);
  b.known.key.kind = steering::KeyVerdict::Kind::unknown; // which the peer may change at any time
  b.queue.on_gone();
  CHECK_FALSE(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}})));
  CHECK_FALSE(post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}})));
  CHECK(b.asked_real == 10);
}

TEST_CASE("what waits behind a passthrough request that fails is flushed", "[direct]") {
  Bench b;
  REQUIRE(
      post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}, {IBV_WR_RDMA_WRITE, signaled}})));
  post_software(b);
  b.queue.passthrough_failed();
  CHECK_FALSE(b.soft.busy());
  REQUIRE(b.device.posted.size() == 3); // to be flushed
  b.land(b.device.posted[2].wr_id, flushed);
  CHECK(b.statuses() == Statuses{flushed});
}

// The number of a marker behind passthrough requests is that of none in the ring.
TEST_CASE("a marker that is refused behind passthrough requests starts anew what is left",
          "[direct]") {
  Bench b;
  b.post_list({IBV_WR_SEND, IBV_WR_SEND, IBV_WR_SEND});
  b.land(2);
  b.queue.clear(); // of a connection before
  b.completions.clear();
  b.device.posted.clear();
  REQUIRE(post_passthrough(b, List({{IBV_WR_SEND, 0}})));
  post_software(b);
  REQUIRE(b.device.posted.size() == 2);
  b.queue.fail(); // an event told of it first
  REQUIRE(b.device.posted.size() == 3);
  b.land(b.device.posted[1].wr_id, IBV_WC_REM_ACCESS_ERR);
  b.land(b.device.posted[2].wr_id, flushed);
  CHECK(b.completions.size() == 1);
  CHECK(b.ring.empty());
}

TEST_CASE("back from SQE nothing passthrough is taken to be under way", "[direct]") {
  Bench b;
  REQUIRE(
      post_passthrough(b, List({{IBV_WR_RDMA_WRITE, signaled}, {IBV_WR_RDMA_WRITE, signaled}})));
  b.queue.passthrough_failed();
  b.queue.recover();
  post_software(b);
  CHECK(b.soft.busy());
}

TEST_CASE("a connection begins with nothing passthrough under way", "[direct]") {
  Bench b;
  REQUIRE(post_passthrough(b, List({{IBV_WR_RDMA_READ, 0}})));
  b.queue.clear();
  CHECK_FALSE(busy(b));
  CHECK(b.lane.receives() == 0);
  landed(b); // of the one before
  post_software(b);
  CHECK(b.soft.busy());
}

TEST_CASE("beside others of the device's a request goes direct and leaves in order", "[direct]") {
  Bench b;
  b.post(IBV_WR_SEND, false); // 0, by the long way
  List list({{IBV_WR_RDMA_WRITE, 0}, {IBV_WR_SEND, signaled}, {IBV_WR_RDMA_READ, signaled}}, 71);
  ibv_send_wr* rest = list.wr.data();
  CHECK(b.queue.post_direct(rest).why == 0);
  CHECK(rest == nullptr);
  CHECK(b.device.calls == 2);
  REQUIRE(b.device.posted.size() == 4);
  CHECK(b.device.posted[1].wr_id == 1); // its number, not the program's
  CHECK(b.lane.receives() == 2);
  uint64_t wr_id = 0;
  CHECK_FALSE(b.queue.complete_direct(2, wr_id)); // the first is not one of these
  b.land(2);
  REQUIRE(b.completions.size() == 1);
  CHECK(b.completions[0].wr_id == 72);
  CHECK(reads(b));
  CHECK(b.queue.complete_direct(3, wr_id));
  CHECK(wr_id == 73);
  CHECK(b.ring.empty());
  CHECK_FALSE(busy(b));
  CHECK(b.completions.size() == 1);
}

TEST_CASE("of a direct list that is refused, the first that was not taken is named", "[direct]") {
  Bench b;
  b.post(IBV_WR_SEND);
  b.device.refuse = 2;
  List list({{IBV_WR_RDMA_WRITE, 0}, {IBV_WR_SEND, signaled}, {IBV_WR_RDMA_READ, signaled}});
  ibv_send_wr* rest = list.wr.data();
  const auto refused = b.queue.post_direct(rest);
  CHECK(refused.why == ENOMEM);
  CHECK(refused.seq == 2);
  CHECK(b.ring.tail() == 2);
  CHECK(b.lane.receives() == 1);
  CHECK_FALSE(reads(b));
}

TEST_CASE("a request that software has done leaves behind the direct one before it", "[direct]") {
  Bench b(Order::relaxed);
  List list({{IBV_WR_RDMA_WRITE, signaled}}, 71);
  ibv_send_wr* rest = list.wr.data();
  REQUIRE(b.queue.post_direct(rest).why == 0);
  REQUIRE(rest == nullptr);
  post_software(b);
  b.answer(1);
  CHECK(b.completions.empty());
  uint64_t wr_id = 0;
  CHECK(b.queue.complete_direct(0, wr_id)); // polled where it is, and the other pushed behind it
  CHECK(wr_id == 71);
  CHECK(b.statuses() == Statuses{success});
  CHECK(b.ring.empty());
}

TEST_CASE("direct requests wait, like others, for what the software lane has", "[direct]") {
  Bench b;
  post_software(b);
  b.become_real();
  List list({{IBV_WR_RDMA_WRITE, signaled}});
  ibv_send_wr* rest = list.wr.data();
  CHECK(b.queue.post_direct(rest).why == 0);
  CHECK(rest == list.wr.data());
  CHECK_FALSE(post_passthrough(b, list));
  CHECK(b.device.calls == 0);
}
