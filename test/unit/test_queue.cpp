// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The send queue by itself: ways, halves, refusals, replays, failures, RESET.
#include "queue_bench.h"

using namespace adverb;
using namespace adverb::test;

TEST_CASE("an answer to a release is nobody's, though request 0 is under way", "[queue]") {
  struct Owner final : transfer::MessageWay {
    Lane& lane(const Request&) override { abort(); }
    Step issue(Request&, int&) override { abort(); }
    void landed(Request&) override {}
    void returned(Request&) override {}
    void answered(Request&, const transfer::ReplyHeader&, std::span<const std::byte>) override {
      ++answers;
    }
    int answers = 0;
  } owner;
  Bench b;
  b.known.peer = Peer::unknown;
  b.post(IBV_WR_RDMA_WRITE);
  Request& r = b.ring.at(0);
  transfer::ReplyHeader reply{};
  reply.run = r.run = b.messages.header(r, transfer::Kind::release).run;
  r.owner = &owner;
  r.asked = true;
  reply.kind = static_cast<uint8_t>(transfer::Kind::release);
  b.messages.on_reply(reply, {});
  CHECK(owner.answers == 0);
  reply.kind = static_cast<uint8_t>(transfer::Kind::grant); // this one is its
  b.messages.on_reply(reply, {});
  CHECK(owner.answers == 1);
  b.messages.on_reply(reply, {}); // and once
  CHECK(owner.answers == 1);
}

TEST_CASE("a flushed marker says that the queue pair is in error", "[queue]") {
  Bench b;
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  REQUIRE(b.device.posted.size() == 2);
  CHECK(b.device.posted[1].wr_id == queue::marker_bit);
  b.land(queue::marker_bit, flushed);
  // No marker more; what waited for it goes the way of all that is posted now.
  REQUIRE(b.device.posted.size() == 3);
  CHECK(b.device.posted[2].wr_id == 1);
  b.land(1, flushed);
  CHECK(b.statuses() == Statuses{flushed});
  CHECK(b.ring.empty());
}

TEST_CASE("what has begun starts anew when its key ends before all of it is sent", "[queue]") {
  Bench b;
  b.stand_.pieces = 2;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  REQUIRE(b.ring.at(0).stage == Stage::carried);
  const std::vector<uint32_t> other{5};
  const std::vector<uint32_t> its{0};
  b.queue.on_keys_ended(other);
  CHECK(b.ring.at(0).stage == Stage::carried);
  b.known.key = {b.known.key.epoch + 1, KeyVerdict::Kind::unknown};
  b.queue.on_keys_ended(its);
  CHECK(b.ring.at(0).stage == Stage::queued);
  CHECK(b.ring.at(0).parts == 0);
  CHECK(b.asked_key != 0);
}

TEST_CASE("where memory is short a post is refused, and leaves nothing behind", "[queue]") {
  Bench b;
  b.become_virtual();
  b.stand_.short_of_memory = true;
  const auto refused = b.post(IBV_WR_RDMA_WRITE);
  CHECK(refused.why == ENOMEM);
  CHECK(refused.seq == 0);
  CHECK(b.ring.empty());
  b.stand_.short_of_memory = false;
  CHECK(b.post(IBV_WR_RDMA_WRITE).why == 0);
  b.answer(0);
  CHECK(b.statuses() == Statuses{success});
}

TEST_CASE("a half by software, then the device", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE_WITH_IMM);
  b.post(IBV_WR_SEND);
  CHECK(b.device.posted.empty());
  b.answer(0);
  CHECK(b.device.posted.size() == 2);
  b.land(1);
  CHECK(b.statuses() == Statuses{success, success});
}

TEST_CASE("what waits for peer or key is chosen when they are known", "[queue]") {
  Bench b;
  b.known.peer = Peer::unknown;
  b.post(IBV_WR_RDMA_WRITE);
  CHECK(b.asked_peer == 2); // and looked once more, as the answer may come at once
  b.known.peer = Peer::linked;
  b.known.key = {};
  b.queue.turn();
  CHECK(b.asked_key == 1);
  b.become_virtual();
  b.queue.turn();
  CHECK(b.soft.busy());
}

TEST_CASE("a way chosen by what is no longer so is chosen again", "[queue]") {
  Bench b;
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE); // waits for the first
  b.become_real();
  b.queue.turn();
  CHECK(b.device.posted.back().wr_id == 1);
  CHECK(b.world.world.counters.value(observe::Counter::posts_chosen_again) == 1);
}

TEST_CASE("what the provider refuses while it is posted is given back to the program", "[queue]") {
  Bench b;
  b.device.refuse = 1;
  const auto refused = b.post_list({IBV_WR_SEND, IBV_WR_SEND, IBV_WR_SEND});
  CHECK(refused.why == ENOMEM);
  CHECK(refused.seq == 1);
  CHECK(b.ring.tail() == 1);
  CHECK(b.stand_.returned == 2);
  b.device.refuse.reset();
  CHECK(b.post(IBV_WR_SEND).why == 0);
  b.land(1);
  CHECK(b.statuses() == Statuses{success, success});
}

TEST_CASE("what the provider refuses while another is chosen for is behind nothing", "[queue]") {
  Bench b;
  b.device.refuse = 0;
  b.asks = 1;
  const auto refused = b.post_list({IBV_WR_SEND, IBV_WR_SEND, IBV_WR_SEND});
  CHECK(refused.why == ENOMEM);
  CHECK(refused.seq == 0);
  CHECK(b.ring.empty());
  CHECK(b.device.posted.empty());
  CHECK_FALSE(b.lane.busy());
}

TEST_CASE("what the provider refuses to flush while it is posted is given back, too", "[queue]") {
  Bench b;
  b.queue.fail();
  b.device.refuse = 1;
  const auto refused = b.post_list({IBV_WR_SEND, IBV_WR_SEND, IBV_WR_SEND});
  CHECK(refused.why == ENOMEM);
  CHECK(refused.seq == 1);
  CHECK(b.ring.tail() == 1);
  b.device.refuse.reset();
  CHECK(b.post(IBV_WR_SEND).why == 0);
  b.land(0, flushed);
  b.land(1, flushed);
  CHECK(b.statuses() == Statuses{flushed, flushed});
}

TEST_CASE("what the provider refuses later completes in error, and the rest is flushed",
          "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.become_real();
  b.post_list({IBV_WR_SEND, IBV_WR_SEND});
  b.device.refuse = 1;
  b.answer(0);
  CHECK(b.statuses() == Statuses{success, IBV_WC_LOC_QP_OP_ERR});
  CHECK(b.in_error);
  REQUIRE(b.device.posted.size() == 1);
  CHECK(b.device.posted[0].wr_id == 2);
  b.land(2, flushed);
  CHECK(b.completions.back().status == flushed);
}

TEST_CASE("what cannot be issued waits for its turn to take the queue pair to error", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.become_real();
  b.post_list({IBV_WR_SEND, IBV_WR_SEND, IBV_WR_SEND});
  b.device.refuse = 2;
  b.answer(0);
  REQUIRE(b.device.posted.size() == 1); // the first SEND
  CHECK_FALSE(b.in_error);
  b.land(1);
  CHECK(b.in_error);
  CHECK(b.statuses() == Statuses{success, success, IBV_WC_LOC_QP_OP_ERR});
  REQUIRE(b.device.posted.size() == 2);
  b.land(3, flushed);
  CHECK(b.completions.back().status == flushed);
}

TEST_CASE("a flush that the provider refuses completes all the same", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.become_real();
  b.post_list({IBV_WR_SEND, IBV_WR_SEND});
  b.device.refuse = 1;
  b.queue.fail();
  CHECK(b.completions.empty()); // not before the first
  b.land(0, flushed);
  b.land(2, flushed);
  CHECK(b.statuses() == Statuses{flushed, flushed, flushed});
}

TEST_CASE("a replay stops the queue until it has landed", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.post(IBV_WR_RDMA_WRITE);
  b.queue.replay(b.ring.at(0), Fault::peer);
  b.queue.turn();
  CHECK_FALSE(b.soft.busy()); // the second was cut
  REQUIRE(b.device.posted.size() == 1);
  CHECK(b.device.posted[0].num_sge == 1);
  CHECK(b.ring.at(1).stage == Stage::queued);
  b.land(0, IBV_WC_REM_ACCESS_ERR);
  REQUIRE(b.device.posted.size() == 2);
  b.land(1, flushed);
  CHECK(b.statuses() == Statuses{IBV_WC_REM_ACCESS_ERR, flushed});
}

TEST_CASE("a replay refused by the provider completes in error", "[queue]") {
  Bench b;
  b.become_virtual();
  ibv_sge unknown{0x1000, 8, 0xBAD};
  ibv_send_wr wr{};
  wr.sg_list = &unknown;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  REQUIRE(b.ring.append(wr) == 0);
  b.queue.turn(0);
  b.device.refuse = 0;
  b.queue.replay(b.ring.at(0), Fault::own_elements);
  b.queue.turn();
  CHECK(b.statuses() == Statuses{IBV_WC_LOC_QP_OP_ERR});
}

TEST_CASE("a READ whose own elements are at fault fails at home", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_READ);
  b.queue.replay(b.ring.at(0), Fault::own_elements);
  b.queue.turn();
  CHECK(b.in_error);
  CHECK(b.device.posted.empty());
  CHECK(b.statuses() == Statuses{IBV_WC_LOC_PROT_ERR});
}

TEST_CASE("a lost link gives the device what it carried, once it may be asked", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.post(IBV_WR_RDMA_WRITE);
  b.replays = false;
  b.known.peer = Peer::lost;
  b.queue.on_gone();
  b.queue.turn();
  CHECK(b.device.posted.empty());
  b.queue.on_gone(); // once more while it waits
  b.queue.turn();
  b.replays = true;
  SECTION("and the rest is decided anew") {
    b.queue.turn();
    REQUIRE(b.device.posted.size() == 1);
    b.known.peer = Peer::stock;
    b.land(0);
    REQUIRE(b.device.posted.size() == 2);
    b.land(1);
    CHECK(b.statuses() == Statuses{success, success});
  }
  SECTION("or flushed, when the queue pair fails meanwhile") {
    b.queue.fail();
    CHECK(b.device.posted.size() == 2);
    b.land(0, flushed);
    b.land(1, flushed);
    CHECK(b.statuses() == Statuses{flushed, flushed});
  }
}

TEST_CASE("what went unasked when the link goes is given to the device whole, once it may be asked",
          "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.ring.at(0).unasked = steering::Unasked::sent;
  b.replays = false;
  b.queue.on_gone();
  b.queue.turn();
  CHECK(b.device.posted.empty());
  b.replays = true;
  b.queue.turn();
  REQUIRE(b.device.posted.size() == 1);
  CHECK(b.ring.at(0).disposition == Disposition::way); // and no replay, of which a few bytes go
  b.land(0);
  CHECK(b.statuses() == Statuses{success});
}

TEST_CASE("what the peer's CPU carried of pinned memory is given to the device whole", "[queue]") {
  Bench b;
  b.become_virtual(); // it went by the software lane
  SECTION("when the peer refuses it") {
    b.post(IBV_WR_RDMA_WRITE);
    b.ring.at(0).served = 77;
    b.queue.replay(b.ring.at(0), Fault::peer);
  }
  SECTION("when it is a READ and the link goes") {
    b.post(IBV_WR_RDMA_READ);
    b.ring.at(0).served = 77;
    b.become_real();
    b.queue.on_gone();
  }
  b.queue.turn();
  REQUIRE(b.device.posted.size() == 1);
  CHECK(b.ring.at(0).disposition ==
        Disposition::way); // a replay would write a few bytes of anything
  b.land(0);
  CHECK(b.statuses() == Statuses{success});
}

TEST_CASE("a WRITE that the peer's CPU may have carried out fails when the link goes", "[queue]") {
  Bench b;
  b.become_virtual();
  SECTION("alone") {}
  SECTION("or behind a READ") {
    b.post(IBV_WR_RDMA_READ);
    b.ring.at(0).served = 77;
  }
  b.post(IBV_WR_RDMA_WRITE);
  b.ring.at(b.ring.tail() - 1).served = 77;
  b.queue.on_gone();
  b.queue.turn();
  CHECK(b.in_error);
  for (const auto& posted : b.device.posted) { // those behind it, to be flushed
    CHECK(posted.opcode == IBV_WR_SEND);
    b.land(posted.wr_id, flushed);
  }
  REQUIRE(!b.statuses().empty());
  CHECK(b.statuses().front() == IBV_WC_RETRY_EXC_ERR);
  CHECK(b.ring.empty());
}

TEST_CASE("the link goes while a request is half through and the queue is stopped", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE_WITH_IMM);
  b.queue.stop();
  b.answer(0);
  CHECK(b.ring.at(0).stage == Stage::half);
  b.queue.on_gone();
  CHECK(b.ring.at(0).disposition == Disposition::replay);
  b.queue.resume();
  CHECK(b.device.posted.size() == 1);
}

TEST_CASE("a marker that the peer refuses fails the request that waits for it", "[queue]") {
  Bench b;
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  SECTION("chosen") {}
  SECTION("or not yet again") {
    b.known.peer = Peer::lost;
    b.queue.on_gone();
    b.queue.turn();
  }
  b.land(queue::marker_bit | 0, IBV_WC_REM_INV_REQ_ERR);
  b.land(0, flushed);
  CHECK(b.completions.back().status == IBV_WC_REM_INV_REQ_ERR);
}

TEST_CASE("what a marker is refused for is said by the first that is flushed", "[queue]") {
  Bench b;
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.post(IBV_WR_RDMA_WRITE);
  SECTION("in error, as a receive that was flushed has told") {
    b.queue.fail();
  }
  SECTION("or when nothing is to be waited for any more") {
    b.become_real();
    b.queue.turn();
  }
  REQUIRE(b.device.posted.size() == 4);
  b.land(queue::marker_bit | 0, IBV_WC_RETRY_EXC_ERR);
  b.land(1, flushed);
  b.land(2, flushed);
  CHECK(b.statuses() == Statuses{IBV_WC_RETRY_EXC_ERR, flushed});
}

TEST_CASE("SQD lets go on what has begun and begins nothing", "[queue]") {
  Bench b;
  b.become_virtual();
  b.stand_.pieces = 2;
  b.post(IBV_WR_RDMA_WRITE); // its second piece waits
  CHECK(b.queue.carrying());
  b.queue.pause(true);
  b.post(IBV_WR_RDMA_WRITE);
  CHECK(b.ring.at(0).sent == 2); // by the turn of the second's post
  CHECK(b.ring.at(1).stage == Stage::queued);
  b.queue.pause(false);
  b.queue.turn();
  CHECK(b.ring.at(1).stage == Stage::carried);
}

TEST_CASE("answers of a request that is chosen again do not count", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.become_real();
  b.queue.again(b.ring.at(0));
  b.queue.turn();
  CHECK_FALSE(b.soft.busy());
  CHECK(b.device.posted.size() == 1);
}

TEST_CASE("a READ whose landing is not good is asked for, and READs behind it are read again",
          "[queue]") {
  Bench b;
  b.stand_.misses = 1;
  b.post_list({IBV_WR_RDMA_READ, IBV_WR_RDMA_READ, IBV_WR_SEND});
  REQUIRE(b.device.posted.size() == 3);
  b.land(0);
  CHECK(b.ring.at(0).stage == Stage::carried);
  CHECK(b.soft.busy());
  b.land(1); // which may be older than what the first is to bring
  b.land(2);
  CHECK(b.completions.empty());
  CHECK(b.device.again == 1);
  b.answer(0);
  CHECK(b.statuses() == std::vector{IBV_WC_SUCCESS});
  REQUIRE(b.device.posted.size() == 4);
  CHECK(b.device.posted.back().opcode == IBV_WR_RDMA_READ);
  b.land(1);
  CHECK(b.statuses() == std::vector(3, IBV_WC_SUCCESS));
  CHECK(b.ring.empty());
  CHECK(b.stand_.landed == std::vector<uint64_t>{0, 2, 1});
}

TEST_CASE("RESET forgets everything and starts afresh", "[queue]") {
  Bench b;
  b.post(IBV_WR_SEND);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.queue.clear();
  CHECK(b.ring.empty());
  CHECK_FALSE(b.lane.busy());
  CHECK_FALSE(b.soft.busy());
  b.land(0); // of before
  CHECK(b.completions.empty());
  b.post(IBV_WR_RDMA_WRITE);
  CHECK(b.soft.busy());
}
