// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// SENDs whose bytes go ahead of them: what both programs see, and by what they went. The path has
// the smallest packets, so that more than 512 bytes are long.
#include "two_programs.h"

#include "model/qp.h"
#include "model/sends_ahead.h"

#include <algorithm>
#include <array>
#include <numeric>

using namespace adverb;
using namespace adverb::test;
using observe::Counter;

namespace {

constexpr const char* far =
    R"({"version": 1, "staging": "8MiB", "rules": [{"reliability": "software"}]})";
constexpr uint32_t lengthy = 3000; // bytes
constexpr size_t at = 8192;        // where the owner receives

struct Ahead {
  explicit Ahead(const char* policy = far, uint8_t version = transfer::version_sends,
                 Program::Wanted wanted = {})
      : two(wanted, policy, 1 << 20, version) {
    fill(a, 5);
  }
  int send(uint32_t bytes, size_t from = 0, ibv_wr_opcode opcode = IBV_WR_SEND,
           unsigned flags = IBV_SEND_SIGNALED) {
    return a.post(opcode, 70 + from, from, bytes, b, 0, 0, flags);
  }
  bool came(size_t to, size_t from, uint32_t bytes) const {
    return std::equal(b.memory.begin() + static_cast<ptrdiff_t>(to),
                      b.memory.begin() + static_cast<ptrdiff_t>(to + bytes),
                      a.memory.begin() + static_cast<ptrdiff_t>(from));
  }
  // What b receives, while a takes its own completions.
  std::vector<ibv_wc> received() {
    std::vector<ibv_wc> all;
    for (int quiet = 0; quiet < 2; ++quiet) {
      for (const auto& wc : drain(two, b)) {
        all.push_back(wc);
        quiet = 0;
      }
      for (const auto& wc : drain(two, a))
        sent.push_back(wc);
    }
    return all;
  }
  std::vector<ibv_wc> sent;
  uint64_t ahead() { return a.count(Counter::posts_send_ahead); }
  // One that went ahead, so that all is known that has to be.
  void begin() {
    REQUIRE(b.receive(1, at, lengthy) == 0);
    REQUIRE(send(lengthy) == 0);
    REQUIRE(drain(two, b).size() == 1);
    REQUIRE(drain(two, a).size() == 1);
    REQUIRE(ahead() == 1);
    std::ranges::fill(b.memory, 0);
  }

  Two two;
  Program& a = two.a;
  Program& b = two.b;
};

} // namespace

TEST_CASE("the bytes of a long SEND go ahead of it, and its receive has them", "[ahead]") {
  Ahead t;
  REQUIRE(t.b.receive(1, at, 4096) == 0);
  REQUIRE(t.send(lengthy, 16) == 0);
  const auto received = drain(t.two, t.b);
  REQUIRE(received.size() == 1);
  CHECK(received[0].status == IBV_WC_SUCCESS);
  CHECK(received[0].opcode == IBV_WC_RECV);
  CHECK(received[0].wr_id == 1);
  CHECK(received[0].byte_len == lengthy);
  CHECK(t.came(at, 16, lengthy));
  CHECK(t.b.memory[at + lengthy] == 0);
  const auto sent = drain(t.two, t.a);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].status == IBV_WC_SUCCESS);
  CHECK(sent[0].opcode == IBV_WC_SEND);
  CHECK(sent[0].wr_id == 86);
  CHECK(t.ahead() == 1);
  CHECK(t.b.count(Counter::recvs_ahead) == 1);
  CHECK(t.two.fabric.last_element.length == 0); // so the device brought none
}

TEST_CASE("an immediate comes with the bytes that came ahead of it", "[ahead]") {
  Ahead t;
  t.begin();
  REQUIRE(t.b.receive(2, at, 4096) == 0);
  ibv_sge sge{t.a.address(0), lengthy, t.a.mr->lkey};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  wr.imm_data = 77;
  wr.send_flags = IBV_SEND_SIGNALED;
  REQUIRE(model::post_send(*t.a.verbs.managed(t.a.qp), &wr, &bad) == 0);
  const auto received = drain(t.two, t.b);
  REQUIRE(received.size() == 1);
  CHECK(received[0].byte_len == lengthy);
  CHECK((received[0].wc_flags & IBV_WC_WITH_IMM) != 0);
  CHECK(received[0].imm_data == 77);
  CHECK(t.came(at, 0, lengthy));
  CHECK(t.ahead() == 2);
}

TEST_CASE("SENDs of all lengths come in the order in which they were posted", "[ahead]") {
  Ahead t;
  t.begin();
  const std::array<uint32_t, 8> lengths{lengthy, 8, 0, 2000, 5, 4096, 0, 64};
  for (size_t i = 0; i < lengths.size(); ++i)
    REQUIRE(t.b.receive(i, at + i * 4096, 4096) == 0);
  for (size_t i = 0; i < lengths.size(); ++i)
    REQUIRE(t.send(lengths[i], i) == 0);
  const auto received = drain(t.two, t.b);
  REQUIRE(received.size() == lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    INFO(i);
    CHECK(received[i].status == IBV_WC_SUCCESS);
    CHECK(received[i].wr_id == i);
    CHECK(received[i].byte_len == lengths[i]);
    CHECK(t.came(at + i * 4096, i, lengths[i]));
  }
  const auto sent = drain(t.two, t.a);
  REQUIRE(sent.size() == lengths.size());
  for (size_t i = 0; i < sent.size(); ++i)
    CHECK(sent[i].wr_id == 70 + i);
  CHECK(t.ahead() >= 4);
}

TEST_CASE("many bytes of SENDs are under way at a time", "[ahead]") {
  Ahead t;
  t.begin();
  for (size_t i = 0; i < 4; ++i)
    REQUIRE(t.b.receive(i, at + i * 4096, 4096) == 0);
  for (size_t i = 0; i < 4; ++i)
    REQUIRE(t.send(lengthy, i) == 0);
  size_t messages = 0;
  for (const auto& pair : t.two.joint.pairs)
    messages += pair.client->sent();
  CHECK(messages == 4); // none has been answered
  CHECK(drain(t.two, t.b).size() == 4);
}

TEST_CASE("a short SEND goes by the device", "[ahead]") {
  Ahead t;
  t.begin();
  REQUIRE(t.b.receive(2, at, 4096) == 0);
  REQUIRE(t.send(512) == 0);
  const auto received = drain(t.two, t.b);
  REQUIRE(received.size() == 1);
  CHECK(received[0].byte_len == 512);
  CHECK(t.came(at, 0, 512));
  CHECK(t.ahead() == 1);
}

TEST_CASE("a peer that knows of none gets SENDs by the device", "[ahead]") {
  Ahead t(far, transfer::version_spares);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(t.b.receive(2, at, 4096) == 0);
    REQUIRE(t.send(lengthy) == 0);
    const auto received = drain(t.two, t.b);
    REQUIRE(received.size() == 1);
    CHECK(received[0].byte_len == lengthy);
    CHECK(t.came(at, 0, lengthy));
  }
  CHECK(t.ahead() == 0);
}

TEST_CASE("what finds no room at the peer goes by the device, in its place", "[ahead]") {
  Ahead t(R"({"version": 1, "staging": "1MiB", "rules": [{"reliability": "software"}]})");
  t.begin();
  registration::Budgets& budgets = t.b.bench.world.budgets();
  const uint64_t most = budgets.staging_bytes();
  REQUIRE(budgets.take_ahead(most - 2 * lengthy));
  for (size_t i = 0; i < 4; ++i) {
    REQUIRE(t.b.receive(i, at + i * 4096, 4096) == 0);
    REQUIRE(t.send(lengthy, i) == 0);
  }
  const auto received = drain(t.two, t.b);
  REQUIRE(received.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(received[i].status == IBV_WC_SUCCESS);
    CHECK(received[i].wr_id == i);
    CHECK(t.came(at + i * 4096, i, lengthy));
  }
  CHECK(drain(t.two, t.a).size() == 4);
  budgets.give_ahead(most - 2 * lengthy);
  CHECK(budgets.take_ahead(most)); // all was given back
}

TEST_CASE("bytes that came ahead do not go where a receive is too short", "[ahead]") {
  Ahead t;
  t.begin();
  REQUIRE(t.b.receive(2, at, lengthy - 1) == 0);
  REQUIRE(t.send(lengthy) == 0);
  const auto received = drain(t.two, t.b);
  REQUIRE(received.size() == 1);
  CHECK(received[0].status == IBV_WC_LOC_LEN_ERR);
  CHECK(std::ranges::all_of(t.b.memory, [](unsigned char c) { return c == 0; }));
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  REQUIRE(FakeFabric::real().ibv_query_qp(t.b.qp, &attr, IBV_QP_STATE, &init) == 0);
  CHECK(attr.qp_state == IBV_QPS_ERR);
}

TEST_CASE("bytes that came ahead do not go where the program has ended the region", "[ahead]") {
  Ahead t;
  t.begin();
  ibv_mr* const mr = t.b.verbs.reg_mr(t.b.pd, t.b.memory.data(), 8192, IBV_ACCESS_LOCAL_WRITE);
  ibv_sge sge{t.b.address(0), 4096, mr->lkey};
  ibv_recv_wr wr{}, *bad = nullptr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  REQUIRE(model::post_recv(*t.b.verbs.managed(t.b.qp), &wr, &bad) == 0);
  REQUIRE(t.b.verbs.dereg_mr(mr) == 0);
  REQUIRE(t.send(lengthy) == 0);
  const auto received = drain(t.two, t.b);
  REQUIRE(received.size() == 1);
  CHECK(received[0].status == IBV_WC_LOC_PROT_ERR);
  CHECK(std::ranges::all_of(t.b.memory, [](unsigned char c) { return c == 0; }));
}

TEST_CASE("elements that the CPU cannot read are the device's to judge", "[ahead]") {
  Ahead t;
  t.begin();
  REQUIRE(t.b.receive(2, at, 4096) == 0);
  ibv_sge sge{t.a.address(0), lengthy, 0x7777}; // no region's
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  REQUIRE(model::post_send(*t.a.verbs.managed(t.a.qp), &wr, &bad) == 0);
  const auto sent = drain(t.two, t.a);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].status == IBV_WC_LOC_PROT_ERR);
}

TEST_CASE("a queue with receives in memory of a device takes no bytes ahead", "[ahead]") {
  Ahead t;
  t.two.fabric.knows_all_memory = true;
  // As for device memory: the provider knows the region, and adverb does not.
  ibv_mr* const mr = FakeFabric::real().ibv_reg_mr_iova(t.b.pd, t.b.memory.data(), 8192,
                                                        t.b.address(0), IBV_ACCESS_LOCAL_WRITE);
  ibv_sge sge{t.b.address(0), 4096, mr->lkey};
  ibv_recv_wr wr{}, *bad = nullptr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  for (int i = 0; i < 2; ++i) {
    REQUIRE(model::post_recv(*t.b.verbs.managed(t.b.qp), &wr, &bad) == 0);
    REQUIRE(t.send(lengthy) == 0);
    const auto received = drain(t.two, t.b);
    REQUIRE(received.size() == 1);
    CHECK(received[0].status == IBV_WC_SUCCESS);
    CHECK(received[0].byte_len == lengthy);
    CHECK(t.came(0, 0, lengthy));
  }
  CHECK(t.ahead() == 0);
  FakeFabric::real().ibv_dereg_mr(mr);
}

TEST_CASE("a program that looks at its memory and does not poll finds what came ahead", "[ahead]") {
  Ahead t;
  t.begin();
  REQUIRE(t.b.receive(2, at, 4096) == 0);
  REQUIRE(t.send(lengthy) == 0);
  t.two.settle();
  CHECK_FALSE(t.came(at, 0, lengthy));
  for (int i = 0; i < 4 && !t.came(at, 0, lengthy); ++i) {
    t.b.bench.service.pass(std::chrono::milliseconds(4));
    t.two.settle();
  }
  CHECK(t.came(at, 0, lengthy));
  const auto received = t.b.poll();
  REQUIRE(received.size() == 1);
  CHECK(received[0].byte_len == lengthy);
}

TEST_CASE("a receive that is posted late has somebody look for its SEND again", "[ahead]") {
  world_test::Bench bench;
  model::Receipts receipts;
  CHECK_FALSE(receipts.look_again());
  transfer::RequestHeader h{};
  h.receive = 1;
  h.source = 7;
  REQUIRE(receipts.keep_ahead(h, {}, bench.world.budgets()) == transfer::Status::ok);
  int looks = 0;
  while (receipts.awaits_send() && looks < 10000)
    ++looks;
  CHECK(looks < 2000);
  CHECK(receipts.look_again());
  CHECK(receipts.awaits_send());
  ibv_wc wc{};
  wc.opcode = IBV_WC_RECV;
  CHECK(receipts.consume(wc).source == model::Receipt::Source::ahead);
  CHECK_FALSE(receipts.look_again());
  CHECK_FALSE(receipts.awaits_send());
}

TEST_CASE("a READ or WRITE finds the bytes of the SEND before it in their place", "[ahead]") {
  Ahead t;
  t.begin();
  REQUIRE(t.b.receive(2, at, 4096) == 0);
  REQUIRE(t.send(lengthy) == 0);
  SECTION("a READ of them") {
    REQUIRE(t.a.post(IBV_WR_RDMA_READ, 3, 20000, lengthy, t.b, at, t.b.mr->rkey) == 0);
    CHECK(drain(t.two, t.a).size() == 2);
    CHECK(std::equal(t.a.memory.begin() + 20000, t.a.memory.begin() + 20000 + lengthy,
                     t.a.memory.begin()));
  }
  SECTION("a WRITE over them") {
    REQUIRE(t.a.post(IBV_WR_RDMA_WRITE, 3, 300, 600, t.b, at, t.b.mr->rkey) == 0);
    CHECK(drain(t.two, t.a).size() == 2);
    CHECK(drain(t.two, t.b).size() == 1);
    CHECK(t.came(at, 300, 600));
    CHECK(t.came(at + 600, 600, lengthy - 600));
  }
}

TEST_CASE("of a peer's queue pair that was reset alone nothing is kept", "[ahead]") {
  world_test::Bench bench;
  model::Receipts receipts;
  transfer::RequestHeader h{};
  h.receive = 1;
  h.source = 7;
  using transfer::Status;
  CHECK(receipts.keep_ahead(h, {}, bench.world.budgets()) == Status::ok);
  h.receive = 2;
  h.source = 8;
  CHECK(receipts.keep_ahead(h, {}, bench.world.budgets()) == Status::refused);
  h.source = 7;
  CHECK(receipts.keep_ahead(h, {}, bench.world.budgets()) == Status::ok);
  receipts.clear();
  CHECK(receipts.keep_ahead(h, {}, bench.world.budgets()) == Status::refused);
  receipts.start();
  h.receive = 1;
  h.source = 8;
  CHECK(receipts.keep_ahead(h, {}, bench.world.budgets()) == Status::ok);
}

TEST_CASE("nobody looks for ever for a SEND whose bytes came ahead", "[ahead]") {
  Ahead t;
  t.begin();
  REQUIRE(t.b.receive(2, at, 4096) == 0);
  REQUIRE(t.send(lengthy) == 0);
  t.two.joint.carry(); // the bytes are there, and their sender does not hear of it
  t.b.bench.service.run_tasks();
  uint64_t polls = 0;
  t.two.fabric.poll = [&] { ++polls; };
  t.b.bench.service.pass(std::chrono::milliseconds(4));
  CHECK(polls == 1);
  t.b.bench.service.pass(std::chrono::seconds(30));
  t.two.fabric.poll = [&] { ++polls; };
  t.b.bench.service.pass(std::chrono::seconds(1));
  CHECK(polls == 1);
}

TEST_CASE("a WRITE behind a SEND is there after it", "[ahead]") {
  Ahead t;
  t.begin();
  REQUIRE(t.b.receive(2, at, 4096) == 0);
  REQUIRE(t.send(lengthy) == 0);
  REQUIRE(t.a.post(IBV_WR_RDMA_WRITE, 3, 100, 600, t.b, 0, t.b.mr->rkey) == 0);
  bool received = false;
  for (int i = 0; i < 64; ++i) {
    if (t.came(0, 100, 600)) {
      CHECK(received);
      break;
    }
    t.a.bench.service.run_tasks();
    t.b.bench.service.run_tasks();
    received |= !t.b.poll().empty();
    t.two.joint.carry();
    t.a.poll();
  }
  CHECK(received);
  CHECK(t.came(0, 100, 600));
}

TEST_CASE("immediates and SENDs take their receives in order", "[ahead]") {
  Ahead t;
  t.begin();
  for (size_t i = 0; i < 4; ++i)
    REQUIRE(t.b.receive(i, at + i * 4096, 4096) == 0);
  REQUIRE(t.send(lengthy, 1) == 0);
  REQUIRE(t.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, 3, 100, 600, t.b, 0, t.b.mr->rkey) == 0);
  REQUIRE(t.send(lengthy, 2) == 0);
  REQUIRE(t.send(40, 3) == 0);
  const auto received = t.received();
  REQUIRE(received.size() == 4);
  CHECK(received[0].byte_len == lengthy);
  CHECK(received[1].opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(received[1].byte_len == 600);
  CHECK(received[2].byte_len == lengthy);
  CHECK(received[3].byte_len == 40);
  CHECK(t.came(at, 1, lengthy));
  CHECK(t.came(at + 2 * 4096, 2, lengthy));
  CHECK(t.came(at + 3 * 4096, 3, 40));
  CHECK(t.came(0, 100, 600));
}

TEST_CASE("behind a fence goes what READs have brought", "[ahead]") {
  Ahead t;
  t.begin();
  fill(t.b, 9);
  REQUIRE(t.b.receive(2, at, 4096) == 0);
  REQUIRE(t.a.post(IBV_WR_RDMA_READ, 3, 0, lengthy, t.b, 40000, t.b.mr->rkey) == 0);
  REQUIRE(t.send(lengthy, 0, IBV_WR_SEND, IBV_SEND_SIGNALED | IBV_SEND_FENCE) == 0);
  REQUIRE(drain(t.two, t.a).size() == 2);
  REQUIRE(drain(t.two, t.b).size() == 1);
  CHECK(t.ahead() == 1); // the device has a fence
  CHECK(std::equal(t.b.memory.begin() + at, t.b.memory.begin() + at + lengthy,
                   t.b.memory.begin() + 40000));
}

TEST_CASE("when the link is lost, SENDs that were not there yet are sent anew, once", "[ahead]") {
  Ahead t;
  t.begin();
  const bool arrived = GENERATE(false, true);
  for (size_t i = 0; i < 3; ++i)
    REQUIRE(t.b.receive(i, at + i * 4096, 4096) == 0);
  for (size_t i = 0; i < 3; ++i)
    REQUIRE(t.send(lengthy, i) == 0);
  if (arrived)
    t.two.joint.carry(); // there, and answered in part
  for (auto& pair : t.two.joint.pairs) {
    pair.client->end();
    pair.server->end();
  }
  t.two.joint.pairs.clear(); // the next one is another
  t.two.settle();
  t.a.bench.service.pass(std::chrono::minutes(2)); // until the peer may be asked again
  const auto received = t.received();
  REQUIRE(received.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(received[i].status == IBV_WC_SUCCESS);
    CHECK(received[i].wr_id == i);
    CHECK(received[i].byte_len == lengthy);
    CHECK(t.came(at + i * 4096, i, lengthy));
  }
  REQUIRE(t.sent.size() == 3);
  for (const auto& wc : t.sent)
    CHECK(wc.status == IBV_WC_SUCCESS);
}

TEST_CASE("a move to ERR flushes SENDs whose bytes have gone ahead", "[ahead]") {
  Ahead t;
  t.begin();
  for (size_t i = 0; i < 2; ++i)
    REQUIRE(t.b.receive(i, at + i * 4096, 4096) == 0);
  for (size_t i = 0; i < 2; ++i)
    REQUIRE(t.send(lengthy, i) == 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  REQUIRE(t.a.verbs.modify_qp(t.a.qp, &attr, IBV_QP_STATE) == 0);
  const auto sent = drain(t.two, t.a);
  REQUIRE(sent.size() == 2);
  for (const auto& wc : sent)
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
  CHECK(drain(t.two, t.b).empty());
}

TEST_CASE("bytes are kept by number, and what is sent anew replaces them", "[ahead]") {
  world_test::Bench bench;
  registration::Budgets& budgets = bench.world.budgets();
  model::SendsAhead sends;
  std::array<std::byte, 64> bytes{};
  const auto keep = [&](uint64_t number, uint64_t offset, uint64_t total, size_t count,
                        std::byte with = std::byte{1}) {
    bytes.fill(with);
    transfer::RequestHeader h{};
    h.receive = number;
    h.address = offset;
    h.total = total;
    h.length = static_cast<uint32_t>(count);
    return sends.keep(h, std::span(bytes).first(count), budgets);
  };
  using transfer::Status;
  CHECK(keep(3, 8, 16, 8) == Status::refused); // it has not begun
  CHECK(keep(3, 0, 16, 8) == Status::ok);
  CHECK(keep(3, 0, 8, 16) == Status::refused); // more than all
  CHECK(keep(3, 0, 16, 8) == Status::ok);      // anew
  CHECK(keep(3, 4, 16, 8) == Status::refused); // not the next
  CHECK(keep(3, 8, 24, 8) == Status::refused); // of another length
  CHECK(keep(4, 8, 16, 8) == Status::refused); // another's
  CHECK(keep(3, 8, 16, 8, std::byte{2}) == Status::ok);
  CHECK(keep(4, 0, 8, 8) == Status::ok);
  CHECK(keep(5, 0, 16, 8) == Status::ok); // not all of it
  CHECK(keep(6, 0, 8, 8) == Status::ok);
  CHECK(keep(7, 0, uint64_t{1} << 40, 8) == Status::full);
  CHECK(keep(8, 0, 8, 8) == Status::ok);
  CHECK(keep(9, 0, 8, 8) == Status::ok);
  CHECK(keep(8, 0, 8, 8) == Status::ok); // and so is what is behind it
  CHECK_FALSE(sends.take(2, true));
  const auto third = sends.take(3, true);
  REQUIRE(third);
  CHECK(third.all().size() == 16);
  CHECK(third.all()[0] == std::byte{1});
  CHECK(third.all()[15] == std::byte{2});
  CHECK_FALSE(sends.take(4, false)); // the device brought that
  CHECK_FALSE(sends.take(5, true));  // not all came
  CHECK(sends.take(6, true));
  CHECK_FALSE(sends.take(6, true));
  CHECK(sends.take(8, true));
  CHECK_FALSE(sends.take(9, true));
}
