// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Small requests of one queue pair that are posted together travel together: which do, which do
// not, and that nothing else about them is new.
#include "model/qp.h"
#include "two_programs.h"

using namespace adverb;
using namespace adverb::test;
using observe::Counter;

namespace {

// A list of requests, between memory of the same place at both ends.
class List {
public:
  List(Program& from, const Program& to) : from_(from), to_(to) {}
  List& add(ibv_wr_opcode opcode, size_t at, uint32_t bytes, unsigned flags = IBV_SEND_SIGNALED) {
    elements_.push_back({from_.address(at), bytes, from_.mr->lkey});
    ibv_send_wr wr{};
    wr.wr_id = elements_.size();
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.wr.rdma = {to_.address(at), to_.mr->rkey};
    list_.push_back(wr);
    return *this;
  }
  ibv_send_wr& last() { return list_.back(); }
  ibv_sge& last_element() { return elements_.back(); }
  int post() {
    for (size_t i = 0; i < list_.size(); ++i) {
      list_[i].sg_list = &elements_[i];
      list_[i].next = i + 1 < list_.size() ? &list_[i + 1] : nullptr;
    }
    ibv_send_wr* bad = nullptr;
    return model::post_send(*from_.verbs.managed(from_.qp), list_.data(), &bad);
  }

private:
  Program& from_;
  const Program& to_;
  std::vector<ibv_sge> elements_;
  std::vector<ibv_send_wr> list_;
};

// Linked, and the key is known.
struct Linked : Two {
  explicit Linked(uint8_t version = transfer::version_sharing)
      : Two({.channel = nullptr, .cqe = 64, .cap = {48, 8, 1, 1, 0}}, "unpinned", 1 << 20,
            version) {
    fill(a, 1);
    REQUIRE(a.post(IBV_WR_RDMA_WRITE, 0, 0, 8, b, 0, b.mr->rkey) == 0);
    REQUIRE(drain(*this, a).size() == 1);
  }
  FakeChannel& client() { return *joint.pairs.front().client; }
  FakeChannel& server() { return *joint.pairs.front().server; }
  bool same(size_t at, size_t bytes) const {
    return memcmp(a.memory.data() + at, b.memory.data() + at, bytes) == 0;
  }
};

void expect(const std::vector<ibv_wc>& done, const std::vector<ibv_wc_status>& statuses) {
  REQUIRE(done.size() == statuses.size());
  for (size_t i = 0; i < done.size(); ++i) {
    CHECK(done[i].wr_id == i + 1);
    CHECK(done[i].status == statuses[i]);
  }
}

} // namespace

TEST_CASE("small requests of one list share a message, and its answer", "[shared]") {
  Linked two;
  List list(two.a, two.b);
  for (size_t i = 0; i < 8; ++i)
    list.add(IBV_WR_RDMA_WRITE, 1000 + 40 * i, static_cast<uint32_t>(1 + 5 * i));
  REQUIRE(list.post() == 0);
  REQUIRE(two.client().sent() == 1);
  two.server().receive(two.client().take());
  two.b.bench.service.run_tasks();
  REQUIRE(two.server().sent() == 1);
  expect(drain(two, two.a), std::vector(8, IBV_WC_SUCCESS));
  for (size_t i = 0; i < 8; ++i)
    CHECK(two.same(1000 + 40 * i, 1 + 5 * i));
}

TEST_CASE("requests of two posts, or of an older peer's, share none", "[shared]") {
  const bool older = GENERATE(false, true);
  Linked two(older ? 1 : 2);
  for (int posts = 0; posts < 2; ++posts) {
    List list(two.a, two.b);
    list.add(IBV_WR_RDMA_WRITE, 1000, 8);
    if (older)
      list.add(IBV_WR_RDMA_READ, 2000, 8);
    REQUIRE(list.post() == 0);
  }
  CHECK(two.client().sent() == (older ? 4 : 2));
  CHECK(drain(two, two.a).size() == (older ? 4 : 2));
  CHECK(two.same(1000, 8));
}

TEST_CASE("an extended batch is one post", "[shared]") {
  Linked two;
  Program& a = two.a;
  auto& qp = *a.verbs.managed(a.qp);
  qp.begin();
  for (uint64_t i = 1; i <= 3; ++i) {
    auto& built = qp.build();
    built.wr.wr_id = i;
    built.wr.opcode = IBV_WR_RDMA_WRITE;
    built.wr.send_flags = IBV_SEND_SIGNALED;
    built.wr.wr.rdma = {two.b.address(100 * i), two.b.mr->rkey};
    built.sges.push_back({a.address(100 * i), 16, a.mr->lkey});
  }
  REQUIRE(qp.commit() == 0);
  CHECK(two.client().sent() == 1);
  expect(drain(two, a), std::vector(3, IBV_WC_SUCCESS));
}

// 72 bytes are a request's header, 64 its answer's.
TEST_CASE("a message is full at 2 KiB, of requests or of what they bring", "[shared]") {
  struct Case {
    ibv_wr_opcode opcode;
    uint32_t bytes;
    size_t together;
  };
  const auto [opcode, bytes, together] =
      GENERATE(Case{IBV_WR_RDMA_WRITE, 64, 15}, Case{IBV_WR_RDMA_WRITE, 952, 2},
               Case{IBV_WR_RDMA_WRITE, 953, 1}, Case{IBV_WR_RDMA_WRITE, 2048, 1},
               Case{IBV_WR_RDMA_READ, 8, 28}, Case{IBV_WR_RDMA_READ, 960, 2},
               Case{IBV_WR_RDMA_READ, 961, 1}, Case{IBV_WR_RDMA_READ, 4000, 1});
  Linked two;
  fill(two.b, 2);
  for (const size_t one_more : {0, 1}) {
    List list(two.a, two.b);
    for (size_t i = 0; i < together + one_more; ++i)
      list.add(opcode, 4096 * (i % 8), bytes);
    REQUIRE(list.post() == 0);
    CHECK(two.client().sent() == 1 + one_more);
    expect(drain(two, two.a), std::vector(together + one_more, IBV_WC_SUCCESS));
    CHECK(two.same(0, bytes));
  }
}

TEST_CASE("what shares a message is carried out in its order", "[shared]") {
  Linked two;
  Program& a = two.a;
  fill(two.b, 2);
  const unsigned char was = two.b.memory[500];
  List list(a, two.b);
  list.add(IBV_WR_RDMA_READ, 500, 8).last_element().addr = a.address(3000);
  list.add(IBV_WR_RDMA_WRITE, 500, 8);
  list.add(IBV_WR_RDMA_READ, 500, 8).last_element().addr = a.address(4000);
  REQUIRE(list.post() == 0);
  CHECK(two.client().sent() == 1);
  expect(drain(two, a), std::vector(3, IBV_WC_SUCCESS));
  CHECK(a.memory[3000] == was);
  CHECK(memcmp(&a.memory[4000], &a.memory[500], 8) == 0);
}

TEST_CASE("what must come behind those in a message waits until they are answered", "[shared]") {
  Linked two;
  Program& a = two.a;
  REQUIRE(two.b.receive(21, 50000, 64) == 0);
  List list(a, two.b);
  list.add(IBV_WR_RDMA_WRITE, 1000, 8).add(IBV_WR_RDMA_WRITE, 2000, 8);
  list.add(IBV_WR_SEND, 3000, 8).add(IBV_WR_RDMA_WRITE, 4000, 8);
  const uint64_t posted = two.fabric.posted;
  REQUIRE(list.post() == 0);
  CHECK(two.client().sent() == 1);
  CHECK(two.fabric.posted == posted);
  expect(drain(two, a), std::vector(4, IBV_WC_SUCCESS));
  CHECK(two.b.poll().size() == 1);
}

TEST_CASE("of a message in which one fails, those before it land and no other", "[shared]") {
  Linked two;
  Program& a = two.a;
  const auto was = two.b.memory;
  List list(a, two.b);
  list.add(IBV_WR_RDMA_WRITE, 1000, 8);
  list.add(IBV_WR_RDMA_WRITE, 2000, 8).last().wr.rdma.remote_addr += 1 << 20;
  list.add(IBV_WR_RDMA_WRITE, 3000, 8).add(IBV_WR_RDMA_WRITE, 4000, 8);
  REQUIRE(list.post() == 0);
  CHECK(two.client().sent() == 1);
  expect(drain(two, a),
         {IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR});
  CHECK(two.same(1000, 8));
  CHECK(memcmp(&two.b.memory[2000], &was[2000], 3000) == 0);
}

TEST_CASE("a READ whose own elements are bad is behind what shares a message before it",
          "[shared]") {
  Linked two;
  Program& a = two.a;
  List list(a, two.b);
  list.add(IBV_WR_RDMA_WRITE, 1000, 8).add(IBV_WR_RDMA_WRITE, 2000, 8);
  list.add(IBV_WR_RDMA_READ, 3000, 8).last_element().lkey += 77;
  list.add(IBV_WR_RDMA_WRITE, 4000, 8);
  REQUIRE(list.post() == 0);
  CHECK(two.client().sent() == 1);
  expect(drain(two, a), {IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR});
  CHECK(two.same(1000, 8));
  CHECK(two.same(2000, 8));
}

TEST_CASE("requests of a key that was not asked of share a message, and the device repeats them",
          "[shared]") {
  const bool virtual_key = GENERATE(true, false);
  Two two({}, virtual_key ? "unpinned" : "default");
  fill(two.a, 1);
  List list(two.a, two.b);
  for (size_t i = 0; i < 3; ++i)
    list.add(IBV_WR_RDMA_WRITE, 1000 * i, 100);
  REQUIRE(list.post() == 0);
  CHECK(two.joint.pairs.front().client->sent() == 1);
  expect(drain(two, two.a), std::vector(3, IBV_WC_SUCCESS));
  CHECK(two.a.count(Counter::key_queries) == 0);
  CHECK(two.b.count(Counter::responder_writes) == (virtual_key ? 3 : 0));
  for (const size_t at : {0, 1000, 2000})
    CHECK(memcmp(&two.a.memory[at], &two.b.memory[at], 100) == 0);
}

TEST_CASE("a credit is a message's, and what waited for one shares the next", "[shared]") {
  Linked two;
  Program& a = two.a;
  for (int posts = 0; posts < 4; ++posts) { // all credits
    List list(a, two.b);
    list.add(IBV_WR_RDMA_WRITE, 1000, 8, 0).add(IBV_WR_RDMA_WRITE, 2000, 8, 0);
    REQUIRE(list.post() == 0);
  }
  for (uint64_t id = 1; id <= 6; ++id)
    REQUIRE(a.post(IBV_WR_RDMA_WRITE, id, 100 * id, 8, two.b, 100 * id, two.b.mr->rkey) == 0);
  REQUIRE(two.client().sent() == 4);
  two.server().receive(two.client().take());
  two.b.bench.service.run_tasks();
  two.client().receive(two.server().take());
  CHECK(two.client().sent() == 4);
  expect(drain(two, a), std::vector(6, IBV_WC_SUCCESS));
  CHECK_FALSE(two.client().down());
}

TEST_CASE("a queue pair that is reset is done with its messages, and their credits come back",
          "[shared]") {
  Linked two;
  Program& a = two.a;
  const bool served = GENERATE(false, true);
  for (int posts = 0; posts < 4; ++posts) {
    List list(a, two.b);
    list.add(IBV_WR_RDMA_WRITE, 1000, 8).add(IBV_WR_RDMA_READ, 2000, 8);
    REQUIRE(list.post() == 0);
  }
  if (served) {
    two.server().receive(two.client().take());
    two.b.bench.service.run_tasks();
  }
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  for (Program* const p : {&a, &two.b})
    REQUIRE(p->verbs.modify_qp(p->qp, &attr, IBV_QP_STATE) == 0);
  two.settle();
  CHECK(drain(two, a).empty());
  a.connect(two.b);
  two.b.connect(a);
  for (int posts = 0; posts < 8; ++posts) {
    List list(a, two.b);
    list.add(IBV_WR_RDMA_WRITE, 3000, 8).add(IBV_WR_RDMA_READ, 4000, 8);
    REQUIRE(list.post() == 0);
    expect(drain(two, a), std::vector(2, IBV_WC_SUCCESS));
  }
  CHECK(two.joint.pairs.size() == 2); // one each way, as before
  CHECK_FALSE(two.client().down());
}
