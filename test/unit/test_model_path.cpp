// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Reliability "auto": what a queue pair does when its path is found to be worth packets, and when
// it is so no more.
#include "two_programs.h"

#include <algorithm>

using namespace adverb;
using namespace adverb::test;
using observe::Counter;

namespace {

constexpr const char* measured = R"({"version": 1, "staging": "8MiB",
  "rules": [{"register": "pinned"}, {"reliability": "auto"}]})";
constexpr uint32_t lengthy = 3000; // bytes: in software a SEND of so many goes ahead
constexpr size_t there = 8192;

struct Path {
  explicit Path(const char* policy = measured) : two({}, policy, 1 << 20, transfer::version_sends) {
    fill(a, 5);
  }
  void judge(bool pays) {
    for (auto& pair : two.joint.pairs)
      pair.client->judge(pays);
    two.settle();
  }
  int write(uint64_t id, size_t from, uint32_t bytes) {
    return a.post(IBV_WR_RDMA_WRITE, id, from, bytes, b, there + from, b.mr->rkey);
  }
  // All WRITEs and SENDs complete in order, without an error.
  std::vector<uint64_t> completed() {
    std::vector<uint64_t> ids;
    for (const auto& wc : drain(two, a)) {
      CHECK(wc.status == IBV_WC_SUCCESS);
      ids.push_back(wc.wr_id);
    }
    return ids;
  }
  bool is_there(size_t from, uint32_t bytes) const {
    return std::equal(a.memory.begin() + static_cast<ptrdiff_t>(from),
                      a.memory.begin() + static_cast<ptrdiff_t>(from + bytes),
                      b.memory.begin() + static_cast<ptrdiff_t>(there + from));
  }
  uint64_t by_cpu() { return a.count(Counter::posts_steered); }
  uint64_t ahead() { return a.count(Counter::posts_send_ahead); }
  // A SEND and its receive.
  void send(uint32_t bytes) {
    REQUIRE(b.receive(1, there, 4096) == 0);
    REQUIRE(a.post(IBV_WR_SEND, 2, 0, bytes, b, 0, 0) == 0);
    const auto received = drain(two, b);
    REQUIRE(received.size() == 1);
    CHECK(received[0].status == IBV_WC_SUCCESS);
    CHECK(received[0].byte_len == bytes);
    CHECK(is_there(0, bytes));
    CHECK(completed() == std::vector<uint64_t>{2});
    std::ranges::fill(b.memory, 0);
  }

  Two two;
  Program& a = two.a;
  Program& b = two.b;
};

} // namespace

TEST_CASE("a path is measured from the first request on that names memory of the peer", "[path]") {
  Path t;
  REQUIRE(t.write(1, 0, 100) == 0);
  CHECK(t.completed().size() == 1);
  REQUIRE_FALSE(t.two.joint.pairs.empty());
  for (const auto& pair : t.two.joint.pairs)
    CHECK(pair.client->judged);
}

TEST_CASE("a path is not measured if the policy says who makes its losses good", "[path]") {
  Path t(R"({"version": 1, "staging": "8MiB",
    "rules": [{"register": "pinned"}, {"reliability": "software"}]})");
  REQUIRE(t.write(1, 0, 100) == 0);
  CHECK(t.completed().size() == 1);
  REQUIRE_FALSE(t.two.joint.pairs.empty());
  for (const auto& pair : t.two.joint.pairs)
    CHECK_FALSE(pair.client->judged);
}

TEST_CASE("the device carries requests until packets pay, and again when they pay no more",
          "[path]") {
  Path t;
  for (int i = 0; i < 4; ++i)
    REQUIRE(t.write(1, 0, 2000) == 0);
  CHECK(t.completed().size() == 4);
  CHECK(t.by_cpu() == 0);
  t.judge(true);
  for (int round = 0; round < 3; ++round) {
    REQUIRE(t.write(2, 0, 2000) == 0);
    CHECK(t.completed() == std::vector<uint64_t>{2});
  }
  CHECK(t.is_there(0, 2000));
  CHECK(t.by_cpu() == 3); // none of them was given to the device meanwhile
  t.judge(false);
  REQUIRE(t.write(3, 0, 2000) == 0);
  CHECK(t.completed() == std::vector<uint64_t>{3});
  CHECK(t.by_cpu() == 3);
  t.judge(true);
  REQUIRE(t.write(4, 0, 2000) == 0);
  CHECK(t.completed() == std::vector<uint64_t>{4});
  CHECK(t.by_cpu() == 4);
}

TEST_CASE("requests that are under way when the judgement changes complete in order", "[path]") {
  Path t;
  std::vector<uint64_t> posted;
  uint64_t id = 0;
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < 3; ++i) {
      posted.push_back(++id);
      REQUIRE(t.write(id, 1000 * (id % 8), 900) == 0);
      if (i == 1)
        for (auto& pair : t.two.joint.pairs)
          pair.client->judge(round % 2 == 0); // nobody has polled meanwhile
    }
    const auto completed = t.completed();
    CHECK(completed == std::vector<uint64_t>(posted.end() - 3, posted.end()));
  }
  CHECK(t.by_cpu() > 3);
  CHECK(t.by_cpu() < 18);
  for (size_t i = 0; i < 8; ++i)
    CHECK(t.is_there(1000 * i, 900));
}

// Packets may pay no more before the peer has put its bytes in place, and what the device carries
// then would not wait for that.
TEST_CASE("SENDs are the device's, whether packets pay or not", "[path]") {
  Path t;
  t.send(lengthy);
  REQUIRE(t.write(1, 0, 100) == 0);
  CHECK(t.completed().size() == 1);
  t.judge(true);
  t.send(lengthy);
  t.send(0);
  t.judge(false);
  t.send(lengthy);
  CHECK(t.ahead() == 0);
}

TEST_CASE("of a link that is lost nothing is known, and the device carries requests", "[path]") {
  Path t;
  REQUIRE(t.write(1, 0, 100) == 0);
  CHECK(t.completed().size() == 1);
  t.judge(true);
  REQUIRE(t.write(1, 0, 100) == 0);
  CHECK(t.completed().size() == 1);
  const uint64_t by_cpu = t.by_cpu();
  CHECK(by_cpu != 0);
  for (auto& pair : t.two.joint.pairs)
    pair.client->end();
  t.two.settle();
  t.two.joint.pairs.clear();
  t.a.bench.service.pass(std::chrono::seconds(1));
  REQUIRE(t.write(2, 0, 100) == 0);
  CHECK(t.completed() == std::vector<uint64_t>{2});
  CHECK(t.by_cpu() == by_cpu);
}

TEST_CASE("what the policy gives to the peer's CPU or the device is not measured", "[path]") {
  Path t(R"({"version": 1, "staging": "8MiB", "rules": [{"register": "pinned"},
    {"match": {"length": {"max": "100B"}}, "steer": "unload"},
    {"match": {"opcode": "read"}, "steer": "offload"}, {"reliability": "auto"}]})");
  const auto steered = [&t](ibv_wr_opcode opcode, uint32_t bytes) {
    const uint64_t before = t.by_cpu();
    for (int i = 0; i < 3; ++i) { // a key is asked about first
      REQUIRE(t.a.post(opcode, 1, 0, bytes, t.b, there, t.b.mr->rkey) == 0);
      CHECK(t.completed().size() == 1);
    }
    return t.by_cpu() != before;
  };
  CHECK(steered(IBV_WR_RDMA_WRITE, 100));
  CHECK_FALSE(steered(IBV_WR_RDMA_WRITE, 101));
  CHECK_FALSE(steered(IBV_WR_RDMA_READ, 101));
  t.judge(true);
  CHECK(steered(IBV_WR_RDMA_WRITE, 100));
  CHECK(steered(IBV_WR_RDMA_WRITE, 101));
  CHECK_FALSE(steered(IBV_WR_RDMA_READ, 101));
  t.judge(false);
  CHECK(steered(IBV_WR_RDMA_WRITE, 100));
  CHECK_FALSE(steered(IBV_WR_RDMA_WRITE, 101));
}

TEST_CASE("no SEND goes ahead of requests that a rule leaves to the device", "[path]") {
  Path t(R"({"version": 1, "staging": "8MiB", "rules": [{"register": "pinned"},
    {"match": {"opcode": "write"}, "steer": "offload"}, {"reliability": "software"}]})");
  for (int i = 0; i < 3; ++i)
    t.send(lengthy);
  REQUIRE(t.a.post(IBV_WR_RDMA_READ, 1, 0, 100, t.b, there, t.b.mr->rkey) == 0);
  CHECK(t.completed().size() == 1);
  t.send(lengthy);
  CHECK(t.ahead() == 0);
}
