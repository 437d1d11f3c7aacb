// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Passthrough requests on leased bytes of the peer's memory: the device sees the lease's key, and
// the lease is in use until the request is known to be complete.
#include "queue_bench.h"

using namespace adverb;
using namespace adverb::test;
using queue::PassthroughSends;

namespace {

constexpr uint32_t key = 0x1100;
constexpr uint32_t rkey = 0x2200;
constexpr uint64_t start = 0x10000;
constexpr uint64_t bytes = 64 << 10;
constexpr unsigned rights =
    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

struct Leasing : Bench {
  Leasing() {
    become_virtual();
    leased = std::make_shared<transfer::Leases>();
    REQUIRE(leased->add(
        {.number = 1, .key = key, .rkey = rkey, .access = rights, .start = start, .bytes = bytes}));
    REQUIRE(queue.open_passthrough());
  }
  // What the short way says to it.
  int post_one(ibv_wr_opcode opcode, uint64_t at = start, uint32_t length = 64,
               unsigned flags = 0) {
    if (!passthrough.open())
      REQUIRE(queue.open_passthrough());
    ibv_sge sge{0x5000, length, 5}; // of a pinned region
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = 42;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED | flags;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    if (is_atomic(opcode))
      wr.wr.atomic = {at, 1, 0, key};
    else
      wr.wr.rdma = {at, key};
    const int rc = passthrough.post_plain<false>(&wr, &bad);
    if (rc != PassthroughSends::plain_but_for_key)
      return rc;
    registration::SendSources::Copy copy{};
    return passthrough.post_leased(&wr, &bad, copy);
  }
  bool in_use() { // by requests that have not ended
    const uint32_t numbers[] = {1};
    return leased->recall(numbers, [] {}) != 0;
  }
  void heard() {
    if (!passthrough.on_completion_polled())
      queue.passthrough_landed();
  }
};

} // namespace

TEST_CASE("a request on leased bytes passes through, under the lease's key", "[leased]") {
  const auto opcode = GENERATE(IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
                               IBV_WR_ATOMIC_FETCH_AND_ADD);
  Leasing b;
  REQUIRE(b.post_one(opcode, start + 8, 8) == 0);
  REQUIRE(b.device.posted.size() == 1);
  const ibv_send_wr& posted = b.device.posted[0];
  CHECK(posted.wr_id == 42);
  CHECK((is_atomic(opcode) ? posted.wr.atomic.rkey : posted.wr.rdma.rkey) == rkey);
  CHECK((is_atomic(opcode) ? posted.wr.atomic.remote_addr : posted.wr.rdma.remote_addr) ==
        start + 8);
  CHECK(b.ring.empty());
  CHECK(b.world.world.counters.value(observe::Counter::posts_leased) == 1);
}

TEST_CASE("a READ is posted without a flag that says nothing of it", "[leased]") {
  Leasing b;
  REQUIRE(b.queue.open_passthrough());
  ibv_sge sge{0x5000, 8, 5};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.wr.rdma = {start, key};
  REQUIRE(b.passthrough.post(&wr, &bad, true) == 0);
  CHECK(b.device.posted.back().send_flags == IBV_SEND_SIGNALED);
}

TEST_CASE("a lease is in use until the request's report, and no longer", "[leased]") {
  Leasing b;
  REQUIRE(b.post_one(IBV_WR_RDMA_WRITE) == 0);
  REQUIRE(b.post_one(IBV_WR_RDMA_WRITE) == 0);
  b.heard();
  CHECK(b.in_use()); // which calls it back
  b.heard();
  CHECK(b.leased->all_back());
}

TEST_CASE("who calls a lease back has the completions of passthrough uses taken", "[leased]") {
  Leasing b;
  REQUIRE(b.post_one(IBV_WR_RDMA_READ) == 0);
  REQUIRE(b.in_use());
  b.queue.have_reported();
  CHECK(b.queue.waits_for_device());
  // Nobody uses what has been called back; what comes behind it keeps nothing waiting.
  CHECK(b.post_one(IBV_WR_RDMA_READ) == PassthroughSends::not_plain);
  b.heard();
  CHECK(b.leased->all_back());
  CHECK_FALSE(b.queue.waits_for_device());
}

TEST_CASE("what fails, and is flushed, ends its use when it has said so", "[leased]") {
  Leasing b;
  REQUIRE(b.post_one(IBV_WR_RDMA_WRITE) == 0);
  REQUIRE(b.post_one(IBV_WR_RDMA_WRITE) == 0);
  b.queue.passthrough_failed();
  CHECK(b.in_use());
  b.queue.passthrough_failed();
  CHECK(b.leased->all_back());
}

TEST_CASE("where some do not report, a marker tells that what failed is over", "[leased]") {
  Leasing b;
  ibv_send_wr silent{}, *bad = nullptr;
  silent.opcode = IBV_WR_SEND;
  REQUIRE(b.passthrough.post(&silent, &bad, true) == 0);
  ibv_sge sge{0x5000, 64, 5};
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.wr.rdma = {start, key};
  REQUIRE(b.passthrough.post(&wr, &bad, true) == 0);
  b.queue.passthrough_failed(); // the first, which says so for all that
  REQUIRE(b.in_use());
  b.queue.have_reported();
  const uint64_t marker = b.device.posted.back().wr_id;
  REQUIRE((marker & queue::marker_bit) != 0);
  b.queue.passthrough_failed();
  b.land(marker, flushed);
  CHECK(b.leased->all_back());
}

TEST_CASE("inline bytes go as they are, whatever their element's key", "[leased]") {
  Leasing b;
  b.queue.turn(); // it is closed, and to be opened anew
  REQUIRE(b.queue.open_passthrough());
  ibv_sge sge{0x5000, 8, 0xDEAD};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.wr.rdma = {start, key};
  REQUIRE(b.passthrough.post(&wr, &bad, false) == 0);
  CHECK(b.device.posted.back().wr.rdma.rkey == rkey);
  CHECK((b.device.posted.back().send_flags & IBV_SEND_INLINE) != 0);
}

TEST_CASE("RESET ends what is in use, and so does the loss of the link", "[leased]") {
  const bool reset = GENERATE(true, false);
  Leasing b;
  REQUIRE(b.post_one(IBV_WR_RDMA_WRITE) == 0);
  REQUIRE(b.in_use());
  reset ? b.queue.clear() : b.queue.on_gone();
  CHECK(b.leased->all_back());
}

TEST_CASE("what the provider refuses uses no lease", "[leased]") {
  Leasing b;
  b.device.refuse = 42;
  CHECK(b.post_one(IBV_WR_RDMA_WRITE) == ENOMEM);
  CHECK_FALSE(b.in_use());
}

TEST_CASE("what is not leased, or not so simple, goes the long way", "[leased]") {
  Leasing b;
  CHECK(b.post_one(IBV_WR_RDMA_READ, start + bytes - 8, 9) == PassthroughSends::not_plain);
  CHECK(b.post_one(IBV_WR_RDMA_READ, start - 1, 9) == PassthroughSends::not_plain);
  CHECK(b.post_one(IBV_WR_RDMA_WRITE, start, 0) == PassthroughSends::not_plain);
  CHECK(b.post_one(IBV_WR_RDMA_READ, start, 8, IBV_SEND_FENCE) == PassthroughSends::not_plain);
  CHECK(b.post_one(IBV_WR_ATOMIC_FETCH_AND_ADD, start + 4, 8) == PassthroughSends::not_plain);
  CHECK(b.post_one(IBV_WR_ATOMIC_FETCH_AND_ADD, start, 4) == PassthroughSends::not_plain);
  CHECK(b.device.posted.empty());
  b.leased->close();
  CHECK(b.post_one(IBV_WR_RDMA_READ) == PassthroughSends::not_plain);
}
