// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Two Worlds in one process: two programs under adverb, each with unpinned regions.
#include "two_programs.h"

#include <algorithm>
#include <array>
#include <sys/mman.h>
#include <thread>

using namespace adverb;
using namespace adverb::test;
using observe::Counter;

TEST_CASE("two Worlds exchange a WRITE, a READ and a SEND", "[worlds]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  fill(b, 2);
  CHECK(two.fabric.registered < 1 << 16); // neither region is
  const auto was = b.memory;

  // Larger than a message, smaller than four.
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 11, 100, 10000, b, 2000, b.mr->rkey) == 0);
  two.settle();
  auto done = a.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].wr_id == 11);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(done[0].opcode == IBV_WC_RDMA_WRITE);
  CHECK(done[0].qp_num == a.qp->qp_num);
  CHECK(memcmp(b.memory.data() + 2000, a.memory.data() + 100, 10000) == 0);
  CHECK(memcmp(b.memory.data(), was.data(), 2000) == 0);
  CHECK(memcmp(b.memory.data() + 12000, was.data() + 12000, b.memory.size() - 12000) == 0);

  REQUIRE(b.post(IBV_WR_RDMA_READ, 12, 30000, 5000, a, 40000, a.mr->rkey) == 0);
  two.settle();
  done = b.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(done[0].opcode == IBV_WC_RDMA_READ);
  CHECK(memcmp(b.memory.data() + 30000, a.memory.data() + 40000, 5000) == 0);

  REQUIRE(b.receive(21, 50000, 2000) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 13, 500, 1500, b, 0, 0) == 0);
  two.settle();
  done = b.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].wr_id == 21);
  CHECK(done[0].byte_len == 1500);
  CHECK(memcmp(b.memory.data() + 50000, a.memory.data() + 500, 1500) == 0);
  done = a.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].wr_id == 13);

  // Each World has counted what it did, and only that.
  CHECK(a.count(Counter::posts_unload) == 1);
  CHECK(a.count(Counter::posts_offload) == 1);
  CHECK(a.count(Counter::responder_reads) == 1);
  CHECK(a.count(Counter::responder_writes) == 0);
  CHECK(b.count(Counter::posts_unload) == 1);
  CHECK(b.count(Counter::responder_writes) == 1);
  for (const auto& line : a.bench.lines.said)
    CHECK_FALSE((line.starts_with("warn") || line.starts_with("error")));
}

TEST_CASE("a wrong key earns the device's own error, and the rest is flushed", "[worlds]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  const auto was = b.memory;
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, b, 65500, b.mr->rkey) == 0); // beyond its end
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 0, 64, b, 0, b.mr->rkey) == 0);
  two.settle();
  std::vector<ibv_wc> done;
  for (int i = 0; i < 4 && done.size() < 2; ++i) {
    const auto more = a.poll();
    done.insert(done.end(), more.begin(), more.end());
    two.settle();
  }
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == IBV_WC_REM_ACCESS_ERR);
  CHECK(done[0].wr_id == 1);
  CHECK(done[1].status == IBV_WC_WR_FLUSH_ERR);
  CHECK(a.qp->state == IBV_QPS_ERR);
  CHECK(b.qp->state == IBV_QPS_ERR);
  CHECK(b.memory == was);
  CHECK(a.count(Counter::replays) == 1);
}

TEST_CASE("a few bytes are sent without asking first what their key names", "[worlds]") {
  const bool virtual_keys = GENERATE(true, false);
  Two two({}, virtual_keys ? "unpinned" : "default");
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  constexpr int remote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  const auto opcode = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ);
  const auto carry = [&](uint64_t id, uint32_t bytes, const ibv_mr* of) {
    REQUIRE(a.post(opcode, id, 0, bytes, b, 4096, of->rkey) == 0);
    const auto done = drain(two, a);
    REQUIRE(done.size() == 1);
    CHECK(done[0].wr_id == id);
    CHECK(done[0].status == IBV_WC_SUCCESS);
    CHECK(memcmp(a.memory.data(), b.memory.data() + 4096, bytes) == 0);
  };
  carry(1, 2048, b.mr);
  CHECK(a.count(Counter::key_queries) == 0);
  CHECK(b.count(opcode == IBV_WR_RDMA_WRITE ? Counter::responder_writes
                                            : Counter::responder_reads) == (virtual_keys ? 1 : 0));
  carry(2, 4096, b.mr); // which has been told of now
  CHECK(a.count(Counter::key_queries) == 0);

  // The next one is of the same kind, most likely: a device's is asked of beforehand.
  ibv_mr* const more = b.verbs.reg_mr(b.pd, b.memory.data(), b.memory.size(), remote);
  REQUIRE(more != nullptr);
  carry(3, 8, more);
  CHECK(a.count(Counter::key_queries) == (virtual_keys ? 0 : 1));
  // And what carries much is not sent in vain.
  ibv_mr* const yet_more = b.verbs.reg_mr(b.pd, b.memory.data(), b.memory.size(), remote);
  REQUIRE(yet_more != nullptr);
  carry(4, 2049, yet_more);
  CHECK(a.count(Counter::key_queries) == (virtual_keys ? 1 : 2));
  b.verbs.dereg_mr(more);
  b.verbs.dereg_mr(yet_more);
}

// Well-formed, of the right run, and naming a request that is there: but it has been answered.
TEST_CASE("an answer that nobody waits for is nobody's", "[worlds]") {
  const auto status = GENERATE(transfer::Status::ok, transfer::Status::refused);
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, b, 0, b.mr->rkey) == 0);
  two.settle();
  CHECK(a.poll().size() == 1);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 0, 64, b, 0, b.mr->rkey) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 3, 0, 64, b, 64, b.mr->rkey) == 0);
  auto& client = *two.joint.pairs.front().client;
  auto& server = *two.joint.pairs.front().server;
  REQUIRE(client.sent() == 2);
  const auto first = client.take();
  const auto second = client.take();
  transfer::RequestHeader asked{};
  memcpy(&asked, second.data(), sizeof asked);
  transfer::ReplyHeader reply{};
  reply.kind = asked.kind;
  reply.run = asked.run;
  reply.source = asked.source;
  reply.request = asked.request;
  const auto answer = [&](transfer::Status how) {
    reply.status = static_cast<uint8_t>(how);
    std::vector<std::byte> bytes(sizeof reply);
    memcpy(bytes.data(), &reply, sizeof reply);
    client.receive(bytes);
  };
  answer(transfer::Status::ok);
  answer(status); // request 3 is done, and waits for request 2
  server.receive(first);
  two.settle();
  const auto done = a.poll();
  REQUIRE(done.size() == 2);
  CHECK(done[0].wr_id == 2);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(done[1].wr_id == 3);
  CHECK(done[1].status == IBV_WC_SUCCESS);
}

TEST_CASE("a fenced payload is copied to staging only when earlier READs have brought it",
          "[worlds]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  fill(b, 2);
  // The device itself carries the READ: its key is a real one. Its landing is staged, too.
  ibv_mr* pinned = test::FakeFabric::real().ibv_reg_mr(b.pd, b.memory.data(), b.memory.size(),
                                                       IBV_ACCESS_REMOTE_READ);
  REQUIRE(b.receive(21, 50000, 64) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_READ, 1, 0, 64, b, 4000, pinned->rkey) == 0);
  two.settle();
  const uint64_t posted = two.fabric.posted;
  REQUIRE(a.post(IBV_WR_SEND, 2, 0, 64, b, 0, 0, IBV_SEND_SIGNALED | IBV_SEND_FENCE) == 0);
  two.settle();
  CHECK(two.fabric.posted == posted);
  auto done = a.poll();
  two.settle();
  const auto more = a.poll();
  done.insert(done.end(), more.begin(), more.end());
  REQUIRE(done.size() == 2);
  CHECK(done[0].wr_id == 1);
  CHECK(done[1].wr_id == 2);
  REQUIRE(b.poll().size() == 1);
  CHECK(memcmp(b.memory.data() + 50000, b.memory.data() + 4000, 64) == 0);
  test::FakeFabric::real().ibv_dereg_mr(pinned);
}

TEST_CASE("what a later READ brings is not overwritten by what an earlier one brought",
          "[worlds]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  constexpr uint32_t large = 20000; // read in place; the small one comes to staging
  ibv_mr* pinned = test::FakeFabric::real().ibv_reg_mr(b.pd, b.memory.data(), b.memory.size(),
                                                       IBV_ACCESS_REMOTE_READ);
  fill(a, 1);
  fill(b, 2);
  REQUIRE(a.post(IBV_WR_RDMA_READ, 1, 800, 8, b, 40000, pinned->rkey) == 0);
  two.settle(); // its key is asked for first
  REQUIRE(two.fabric.posted == 1);
  SECTION("to the same bytes") {
    REQUIRE(a.post(IBV_WR_RDMA_READ, 2, 0, large, b, 0, pinned->rkey) == 0);
    CHECK(two.fabric.posted == 1); // it waits
    CHECK(drain(two, a).size() == 2);
    CHECK(memcmp(a.memory.data(), b.memory.data(), large) == 0);
  }
  SECTION("beside them") {
    REQUIRE(a.post(IBV_WR_RDMA_READ, 2, 808, large, b, 808, pinned->rkey) == 0);
    CHECK(two.fabric.posted == 2);
    CHECK(drain(two, a).size() == 2);
  }
  CHECK(memcmp(a.memory.data() + 808, b.memory.data() + 808, large - 808) == 0);
  test::FakeFabric::real().ibv_dereg_mr(pinned);
}

TEST_CASE("a READ that says its data is inline brings it all the same", "[worlds]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  fill(b, 2);
  REQUIRE(a.post(IBV_WR_RDMA_READ, 1, 0, 64, b, 4000, b.mr->rkey,
                 IBV_SEND_SIGNALED | IBV_SEND_INLINE) == 0);
  REQUIRE(drain(two, a).size() == 1);
  CHECK(memcmp(a.memory.data(), b.memory.data() + 4000, 64) == 0);
}

TEST_CASE("a fenced payload that is sent as it lies waits for READs that are copied to it",
          "[worlds]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  constexpr uint32_t large = 20000; // a window; what the READ brings is staged
  fill(a, 1);
  fill(b, 2);
  ibv_mr* pinned = test::FakeFabric::real().ibv_reg_mr(b.pd, b.memory.data(), b.memory.size(),
                                                       IBV_ACCESS_REMOTE_READ);
  REQUIRE(b.receive(21, 40000, large) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_READ, 1, 0, 64, b, 4000, pinned->rkey) == 0);
  two.settle();
  const uint64_t posted = two.fabric.posted;
  REQUIRE(a.post(IBV_WR_SEND, 2, 0, large, b, 0, 0, IBV_SEND_SIGNALED | IBV_SEND_FENCE) == 0);
  two.settle();
  CHECK(two.fabric.posted == posted);
  auto done = a.poll();
  two.settle();
  const auto more = a.poll();
  done.insert(done.end(), more.begin(), more.end());
  REQUIRE(done.size() == 2);
  CHECK(done[1].wr_id == 2);
  REQUIRE(b.poll().size() == 1);
  CHECK(memcmp(b.memory.data() + 40000, b.memory.data() + 4000, 64) == 0);
  test::FakeFabric::real().ibv_dereg_mr(pinned);
}

TEST_CASE("a list of requests is one call of the provider", "[worlds]") {
  Two two;
  Program& a = two.a;
  for (uint64_t id = 0; id < 8; ++id)
    REQUIRE(two.b.receive(id, 64 * id, 64) == 0);
  std::array<ibv_send_wr, 8> list{};
  ibv_sge sge{a.address(0), 32, a.mr->lkey};
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].next = i + 1 < list.size() ? &list[i + 1] : nullptr;
    list[i].sg_list = &sge;
    list[i].num_sge = 1;
    list[i].opcode = IBV_WR_SEND;
  }
  const uint64_t calls = two.fabric.post_calls;
  ibv_send_wr* bad = nullptr;
  REQUIRE(model::post_send(*a.verbs.managed(a.qp), list.data(), &bad) == 0);
  CHECK(two.fabric.post_calls == calls + 1);
  CHECK(two.b.poll().size() == 8);
}

// Its peer forgets them then, and cannot give them back.
TEST_CASE("what was lent over a link is not pinned for ever once that is lost", "[worlds]") {
  Program::Wanted wanted;
  wanted.access |= IBV_ACCESS_REMOTE_ATOMIC;
  Two two(wanted);
  Program& a = two.a;
  Program& b = two.b;
  const uint64_t before = two.fabric.registered;
  ibv_sge sge{a.address(0), 8, a.mr->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.atomic = {(b.address(64) + 7) & ~uintptr_t{7}, 1, 0, b.mr->rkey};
  ibv_send_wr* bad = nullptr;
  REQUIRE(model::post_send(*a.verbs.managed(a.qp), &wr, &bad) == 0);
  const auto done = drain(two, a);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  const uint64_t lent = two.fabric.registered;
  CHECK(lent > before);
  for (auto& pair : two.joint.pairs) {
    pair.client->end();
    pair.server->end();
  }
  two.settle();
  b.bench.service.pass(std::chrono::seconds(1));
  CHECK(two.fabric.registered == lent); // an atomic may be on its way
  b.bench.service.pass(std::chrono::minutes(2));
  CHECK(two.fabric.registered < lent);
}

namespace {

constexpr const char* steered = R"({"version": 1, "rules": [{"register": "pinned"},
  {"match": {"opcode": "write", "length": {"max": "1KiB"}}, "steer": "unload"}]})";

// WRITEs of so many bytes, one after the other; all succeed, and are there.
void write(Two& two, int count, uint32_t bytes) {
  for (int i = 0; i < count; ++i) {
    fill(two.a, static_cast<unsigned>(i));
    REQUIRE(two.a.post(IBV_WR_RDMA_WRITE, 5, 10, bytes, two.b, 3000, two.b.mr->rkey) == 0);
    const auto done = drain(two, two.a);
    REQUIRE(done.size() == 1);
    CHECK(done[0].wr_id == 5);
    CHECK(done[0].status == IBV_WC_SUCCESS);
    CHECK(memcmp(two.b.memory.data() + 3000, two.a.memory.data() + 10, bytes) == 0);
  }
}

} // namespace

TEST_CASE("what is left to the peer's CPU goes by the device where the peer's queue pair is gone",
          "[worlds]") {
  Two two({}, R"({"version": 1, "staging": "8MiB",
    "rules": [{"register": "pinned"}, {"reliability": "software"}]})");
  write(two, 2, 100);
  CHECK(two.a.count(Counter::posts_steered) != 0);
  // Of its key nothing is known yet, and there is nobody left who could be asked.
  ibv_mr* const other = two.b.verbs.reg_mr(two.b.pd, two.b.memory.data(), 4096,
                                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  two.b.verbs.destroy_qp(std::exchange(two.b.qp, nullptr));
  const uint64_t queries = two.a.count(Counter::key_queries);
  const uint64_t by_device = two.a.count(Counter::posts_offload);
  REQUIRE(two.a.post(IBV_WR_RDMA_WRITE, 7, 10, 100, two.b, 3000, other->rkey) == 0);
  for (int i = 0; i < 100; ++i) {
    two.a.bench.service.run_tasks();
    two.b.bench.service.run_tasks();
    two.joint.carry();
  }
  CHECK(two.a.count(Counter::key_queries) == queries + 1);
  CHECK(two.a.count(Counter::posts_offload) == by_device + 1);
  two.b.verbs.dereg_mr(other);
}

TEST_CASE("short WRITEs to pinned memory go by the owner's CPU, if a rule says so", "[worlds]") {
  Two two({}, steered);
  write(two, 8, 100);
  CHECK(two.a.count(Counter::posts_steered) >= 6); // the key is asked about first
  const uint64_t before = two.a.count(Counter::posts_steered);
  CHECK(two.b.count(Counter::responder_writes) == before);
  write(two, 2, 2000);
  CHECK(two.a.count(Counter::posts_steered) == before);
  CHECK(two.b.count(Counter::responder_writes) == before);
  CHECK(two.a.count(Counter::regions_unpinned) == 0);
}

TEST_CASE("a region that was served ends for its peers as for the device", "[worlds]") {
  Two two({}, steered);
  write(two, 4, 100);
  REQUIRE(two.a.count(Counter::posts_steered) != 0);
  const uint32_t key = two.b.mr->rkey;
  REQUIRE(two.b.verbs.dereg_mr(two.b.mr) == 0);
  const auto was = two.b.memory;
  fill(two.a, 99);
  REQUIRE(two.a.post(IBV_WR_RDMA_WRITE, 6, 10, 100, two.b, 3000, key) == 0);
  const auto done = drain(two, two.a);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_REM_ACCESS_ERR);
  CHECK(two.b.memory == was);
  two.b.mr = two.b.verbs.reg_mr(two.b.pd, two.b.memory.data(), two.b.memory.size(),
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

TEST_CASE("an owner whose CPU is short says so to who steers, and to nobody else", "[worlds]") {
  const uint8_t version = GENERATE(transfer::version_views, transfer::version_spares);
  CAPTURE(version);
  Two two({}, steered, 1 << 20, version);
  two.b.bench.service.is_short = true;
  write(two, 2, 2000); // no key of its is served yet
  CHECK(two.a.count(Counter::peers_spared) == 0);
  write(two, 8, 100);
  CHECK(two.a.count(Counter::posts_steered) != 0); // a rule says so, and not measurement
  CHECK(two.a.count(Counter::peers_spared) == (version == transfer::version_spares ? 1 : 0));
}

TEST_CASE("nothing waits for a proof that steering alone asks for", "[worlds]") {
  const bool refused = GENERATE(false, true);
  CAPTURE(refused);
  Two two({}, steered, 1 << 20, transfer::version_sharing, true);
  two.joint.keys_are_real = true;
  two.joint.refuses_proof = refused;
  write(two, 8, 100);
  CHECK(two.a.count(Counter::posts_steered) == 0);
  for (const auto& line : two.a.bench.lines.said) // as if it could not be reached any more
    CHECK_FALSE((line.starts_with("warn") || line.starts_with("error")));
}

TEST_CASE("elements that are too many are not looked at", "[worlds]") {
  Two two({}, steered);
  write(two, 4, 100);
  const size_t page = 4096;
  auto* const pages = static_cast<std::byte*>(
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(pages != MAP_FAILED);
  REQUIRE(mprotect(pages + page, page, PROT_NONE) == 0);
  auto* const last = reinterpret_cast<ibv_sge*>(pages + page) - 1;
  *last = {two.a.address(0), 8, two.a.mr->lkey};
  const int count = GENERATE(1000, -1);
  for (const unsigned bare : {1, 0}) {
    ibv_send_wr wr{};
    wr.wr_id = 7;
    wr.sg_list = last;
    wr.num_sge = count;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = bare * unsigned{IBV_SEND_SIGNALED};
    wr.wr.rdma = {two.b.address(0), two.b.mr->rkey};
    ibv_send_wr* bad = nullptr;
    CHECK(model::post_send(*two.a.verbs.managed(two.a.qp), &wr, &bad) != 0);
  }
  munmap(pages, 2 * page);
}

TEST_CASE("what the peer's CPU has been asked for is there before a queue pair has ended",
          "[worlds]") {
  const bool is_steered = GENERATE(false, true);
  const auto end = GENERATE(IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPS_UNKNOWN);
  CAPTURE(is_steered, end);
  Two two({}, is_steered ? steered : R"({"version": 1, "rules": [{"register": "none"}]})");
  write(two, 4, 100);
  fill(two.a, 77);
  REQUIRE(two.a.post(IBV_WR_RDMA_WRITE, 6, 10, 100, two.b, 3000, two.b.mr->rkey) == 0);
  const auto at = std::ranges::find_if(
      two.joint.pairs, [](const Joint::Pair& one) { return one.client->sent() != 0; });
  REQUIRE(at != two.joint.pairs.end());
  Joint::Pair& pair = *at;
  const auto is_there = [&] {
    return memcmp(two.b.memory.data() + 3000, two.a.memory.data() + 10, 100) == 0;
  };
  REQUIRE_FALSE(is_there());
  std::thread peer([&] { // takes its time
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pair.server->receive(pair.client->take());
    two.b.bench.service.run_tasks();
    pair.client->receive(pair.server->take());
  });
  if (end == IBV_QPS_UNKNOWN) {
    CHECK(two.a.verbs.destroy_qp(two.a.qp) == 0);
    two.a.qp = nullptr;
  } else {
    ibv_qp_attr attr{};
    attr.qp_state = end;
    CHECK(two.a.verbs.modify_qp(two.a.qp, &attr, IBV_QP_STATE) == 0);
  }
  const bool was_there = is_there();
  peer.join();
  // Or it has been said, where this machine let that thread wait for longer than one waits for it.
  const auto said = [&] {
    return std::ranges::any_of(two.a.bench.lines.said, [](const std::string& line) {
      return line.find("may carry out later") != std::string::npos;
    });
  };
  CHECK((was_there || said()));
}
