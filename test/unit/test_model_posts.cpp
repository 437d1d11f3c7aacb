// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The ways to post beside the plain one, and that each keeps its promise.
#include "model/qp.h"
#include "skip.h"
#include "slow_page.h"
#include "two_programs.h"

#include <cerrno>
#include <future>
#include <sys/mman.h>
#include <thread>

using namespace adverb;
using namespace adverb::test;

namespace {

using Numbers = std::vector<uint64_t>;
Numbers numbers(const std::vector<ibv_wc>& all) {
  Numbers out;
  for (const auto& wc : all)
    out.push_back(wc.wr_id);
  return out;
}

int bind(Program& p, ibv_mw& mw, uint64_t id) {
  ibv_mw_bind bind{};
  bind.wr_id = id;
  bind.send_flags = IBV_SEND_SIGNALED;
  return model::bind_mw(*p.verbs.managed(p.qp), &mw, &bind);
}

} // namespace

TEST_CASE("a window is bound by a request among others", "[posts]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  ibv_mw mw{};
  mw.type = IBV_MW_TYPE_1;
  mw.rkey = 0x1FF;
  REQUIRE(b.receive(21, 0, 8) == 0);
  REQUIRE(b.receive(22, 8, 8) == 0);
  REQUIRE(bind(a, mw, 0) == 0);
  CHECK(mw.rkey == 0x100);
  REQUIRE(a.post(IBV_WR_SEND, 1, 100, 8, b, 0, 0) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 2, 200, 8, b, 0, 0) == 0);
  const auto done = a.poll();
  CHECK(numbers(done) == Numbers{0, 1, 2});
  CHECK(done[0].opcode == IBV_WC_BIND_MW);
  CHECK(numbers(b.poll()) == Numbers{21, 22});
  CHECK(memcmp(b.memory.data(), a.memory.data() + 100, 8) == 0);
  CHECK(memcmp(b.memory.data() + 8, a.memory.data() + 200, 8) == 0);
}

// It may be a constant, or be posted to another queue pair at the same time.
TEST_CASE("a post that succeeds writes to nothing of the program's", "[posts]") {
  const bool after_bind = GENERATE(false, true);
  Two two({}, "default"); // pinned: the device can have it as it stands
  Program& a = two.a;
  Program& b = two.b;
  ibv_mw mw{};
  mw.type = IBV_MW_TYPE_1;
  if (after_bind)
    REQUIRE(bind(a, mw, 0) == 0);
  a.poll();
  REQUIRE(b.receive(21, 0, 8) == 0);
  REQUIRE(b.receive(22, 8, 8) == 0);
  constexpr size_t page = 4096;
  auto* wr = static_cast<ibv_send_wr*>(
      mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(wr != MAP_FAILED);
  ibv_sge sge{a.address(100), 8, a.mr->lkey};
  for (uint64_t i = 0; i < 2; ++i) {
    wr[i].wr_id = i + 1;
    wr[i].next = i == 0 ? &wr[1] : nullptr;
    wr[i].sg_list = &sge;
    wr[i].num_sge = 1;
    wr[i].opcode = IBV_WR_SEND;
    wr[i].send_flags = IBV_SEND_SIGNALED;
  }
  REQUIRE(mprotect(wr, page, PROT_READ) == 0);
  // Nor where the refused one is to be named, if none is.
  CHECK(model::post_send(*a.verbs.managed(a.qp), wr, nullptr) == 0);
  CHECK(numbers(a.poll()) == Numbers{1, 2});
  CHECK(numbers(b.poll()) == Numbers{21, 22});
  munmap(wr, page);
}

TEST_CASE("a binding that waits in the queue has told its key", "[posts]") {
  Two two;
  Program& a = two.a;
  ibv_mw mw{};
  mw.type = IBV_MW_TYPE_1;
  mw.rkey = 0x10;
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, two.b, 300, two.b.mr->rkey) == 0); // under way
  REQUIRE(bind(a, mw, 2) == 0);
  CHECK(mw.rkey == 0x11);
  REQUIRE(bind(a, mw, 3) == 0);
  CHECK(mw.rkey == 0x12);
  CHECK(two.fabric.bound.empty());
  two.settle();
  CHECK(two.fabric.bound == std::vector<uint32_t>{0x11, 0x12});
  CHECK(mw.rkey == 0x12);
  CHECK(numbers(a.poll()) == Numbers{1, 2, 3});
}

namespace {

// An extended queue pair, as far as the calls look at it.
struct Builder {
  explicit Builder(Program& p) : p(p), mine(*p.verbs.managed(p.qp)) { model::wr_start(mine, &ex); }
  void send(uint64_t id, size_t at, uint32_t bytes) {
    ex.wr_id = id;
    ex.wr_flags = IBV_SEND_SIGNALED;
    model::wr_send(mine, &ex);
    model::wr_set_sge(mine, &ex, p.mr->lkey, p.address(at), bytes);
  }
  int complete() { return model::wr_complete(mine, &ex); }
  Program& p;
  model::Qp& mine;
  ibv_qp_ex ex{};
};

} // namespace

TEST_CASE("a batch that cannot be posted as a whole is not posted at all", "[posts]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  for (uint64_t id = 21; id < 25; ++id)
    REQUIRE(b.receive(id, 0, 64) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 9, 0, 64, b, 0, 0) == 0); // there is staging from now on
  CHECK(numbers(a.poll()) == Numbers{9});
  const uint64_t posted = two.fabric.posted;
  Builder bad(a);
  bad.send(1, 0, 64);
  bad.send(2, 0, 64);
  bad.send(3, 0, 40000); // would need a window
  two.fabric.refuse_regions = ENOMEM;
  CHECK(bad.complete() == ENOMEM);
  two.fabric.refuse_regions = 0;
  CHECK(two.fabric.posted == posted);
  CHECK(a.poll().empty());
  Builder good(a);
  good.send(4, 0, 64);
  good.send(5, 0, 64);
  CHECK(good.complete() == 0);
  CHECK(numbers(a.poll()) == Numbers{4, 5});
  CHECK(numbers(b.poll()) == Numbers{21, 22, 23});
}

TEST_CASE("what the provider refuses of a batch it has begun is the queue pair's error",
          "[posts]") {
  Two two;
  Program& a = two.a;
  for (uint64_t id = 21; id < 25; ++id)
    REQUIRE(two.b.receive(id, 0, 64) == 0);
  Builder batch(a);
  batch.send(1, 0, 64);
  batch.send(2, 0, 64);
  batch.send(3, 0, 64);
  SECTION("the first: nothing was posted") {
    two.fabric.refuse_post = 1;
    CHECK(batch.complete() == ENOMEM);
    CHECK(a.poll().empty());
  }
  SECTION("another: what was posted is not denied") {
    two.fabric.refuse_post = 2;
    CHECK(batch.complete() == 0);
    std::vector<ibv_wc> done;
    for (int i = 0; i < 4; ++i)
      for (const auto& wc : a.poll())
        done.push_back(wc);
    REQUIRE(done.size() == 3);
    CHECK(done[0].status == IBV_WC_SUCCESS);
    CHECK(done[1].status == IBV_WC_LOC_QP_OP_ERR);
    CHECK(done[2].status == IBV_WC_WR_FLUSH_ERR);
  }
}

TEST_CASE("nothing goes ahead of what the provider has not taken", "[posts]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  REQUIRE(b.receive(21, 0, 64) == 0);
  ibv_mr* pinned =
      b.verbs.reg_mr(b.pd, b.memory.data(), 4096,
                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND);
  REQUIRE_FALSE(pinned->rkey == b.mr->rkey);
  two.fabric.refuse_post = 1;
  // It waits until it is known what its key names; so does what it brings.
  REQUIRE(a.post(IBV_WR_RDMA_READ, 1, 0, 64, b, 0, pinned->rkey, 0) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 2, 0, 64, b, 0, 0, IBV_SEND_SIGNALED | IBV_SEND_FENCE) == 0);
  const auto done = drain(two, a);
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == IBV_WC_LOC_QP_OP_ERR);
  CHECK(done[1].status == IBV_WC_WR_FLUSH_ERR);
  for (const auto& wc : b.poll())
    CHECK(wc.status != IBV_WC_SUCCESS);
  b.verbs.dereg_mr(pinned);
}

TEST_CASE("between wr_start and wr_complete nobody else waits for the queue pair", "[posts]") {
  Two two;
  Program& a = two.a;
  Builder batch(a);
  // In a thread of its own, so that a lock is waited for and not found held by the same thread.
  auto other = std::async(std::launch::async, [&] {
    const bool received = a.receive(41, 0, 64) == 0;
    const bool polled = a.poll().empty();
    ibv_mr* mr = a.verbs.reg_mr(a.pd, a.memory.data(), 4096, IBV_ACCESS_LOCAL_WRITE);
    return received && polled && a.verbs.dereg_mr(mr) == 0;
  });
  const bool went_on = other.wait_for(std::chrono::seconds(120)) == std::future_status::ready;
  REQUIRE(two.b.receive(22, 0, 64) == 0);
  batch.send(2, 0, 64);
  CHECK(batch.complete() == 0);
  CHECK(went_on);
  CHECK(other.get());
}

TEST_CASE("UC hears of no refusal, and is told the length it asked for", "[posts]") {
  Program::Wanted wanted;
  wanted.type = IBV_QPT_UC;
  Two two(wanted);
  Program& a = two.a;
  Program& b = two.b;
  // Beyond the end of the region.
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, b, b.memory.size() - 32, b.mr->rkey) == 0);
  two.settle();
  const auto done = a.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(done[0].byte_len == 64);
}

namespace {

// SENDs without a payload, which go to the device as they stand.
int post_sends(Program& p, std::vector<unsigned> flags, uint64_t first, size_t* taken = nullptr) {
  std::vector<ibv_send_wr> list(flags.size());
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].wr_id = first + i;
    list[i].next = i + 1 < list.size() ? &list[i + 1] : nullptr;
    list[i].opcode = IBV_WR_SEND;
    list[i].send_flags = flags[i];
  }
  ibv_send_wr* bad = nullptr;
  const int rc = model::post_send(*p.verbs.managed(p.qp), list.data(), &bad);
  if (taken != nullptr)
    *taken = rc == 0 ? list.size() : static_cast<size_t>(bad - list.data());
  return rc;
}

void complete(Program& p, uint64_t id) {
  ibv_wc wc{};
  wc.wr_id = id;
  wc.qp_num = p.qp->qp_num;
  FakeFabric::complete(p.cq, wc);
}

constexpr unsigned told = IBV_SEND_SIGNALED;

} // namespace

// The provider has a slot more, which is adverb's.
TEST_CASE("as many requests may be outstanding as the queue was said to hold", "[posts]") {
  Two two({}, "default"); // eight
  two.fabric.stalled = true;
  Program& a = two.a;
  size_t taken = 0;
  SECTION("all of them report") {
    for (uint64_t id = 0; id < 8; ++id)
      REQUIRE(post_sends(a, {told}, id) == 0);
    CHECK(post_sends(a, {told}, 8, &taken) == ENOMEM);
    CHECK(taken == 0);
    complete(a, 0);
    CHECK(post_sends(a, {told}, 8) == ENOMEM); // the program has not seen it
    CHECK(numbers(a.poll()) == Numbers{0});
    CHECK(post_sends(a, {told}, 8) == 0);
    CHECK(post_sends(a, {told}, 9) == ENOMEM);
  }
  SECTION("in a list, of which those that fit are taken") {
    CHECK(post_sends(a, std::vector<unsigned>(10, told), 0, &taken) == ENOMEM);
    CHECK(taken == 8);
    CHECK(two.fabric.posted == 8);
    two.fabric.stalled = false;
  }
  SECTION("one that reports frees the silent ones before it") {
    CHECK(post_sends(a, {0, 0, told}, 0) == 0);
    CHECK(post_sends(a, {0}, 3) == 0);
    CHECK(post_sends(a, {told}, 4) == 0);
    CHECK(post_sends(a, {told}, 5) == 0);
    CHECK(post_sends(a, {0}, 6) == 0);
    CHECK(post_sends(a, {0, 0, told}, 7, &taken) == ENOMEM);
    CHECK(taken == 1);
  }
}

TEST_CASE("what a report frees of a queue is what it tells of", "[posts]") {
  Two two({}, "default");
  two.fabric.stalled = true;
  Program& a = two.a;
  const auto room = [&](size_t expected) { // leaves none
    size_t taken = 0;
    CHECK(post_sends(a, std::vector<unsigned>(9, told), 100, &taken) == ENOMEM);
    CHECK(taken == expected);
  };
  REQUIRE(post_sends(a, {0, 0, told}, 0) == 0);
  REQUIRE(post_sends(a, {told, 0}, 3) == 0);
  REQUIRE(post_sends(a, {0}, 5) == 0);
  REQUIRE(post_sends(a, {told, 0}, 6) == 0);
  SECTION("the first") {
    complete(a, 2);
    REQUIRE(a.poll().size() == 1);
    room(3);
  }
  SECTION("the first and the second") {
    complete(a, 2);
    complete(a, 3);
    REQUIRE(a.poll().size() == 2);
    room(4);
  }
  SECTION("all") {
    complete(a, 2);
    complete(a, 3);
    complete(a, 6);
    REQUIRE(a.poll().size() == 3);
    room(7);
  }
}

// It would be issued when there is no room for it at the device, and end in error.
TEST_CASE("a request that has to wait counts beside those that the device has", "[posts]") {
  Two two({}, "unpinned");
  Program& a = two.a;
  Program& b = two.b;
  two.fabric.stalled = true;
  const auto write = [&] {
    return a.post(IBV_WR_RDMA_WRITE, 50, 0, 8, b, 0, b.mr->rkey); // by the software lane
  };
  SECTION("none when it is full") {
    REQUIRE(post_sends(a, std::vector<unsigned>(8, told), 0) == 0);
    CHECK(write() == ENOMEM);
    complete(a, 0);
    REQUIRE(a.poll().size() == 1);
    CHECK(write() == 0);
    CHECK(write() == ENOMEM);
    CHECK(post_sends(a, {told}, 8) == ENOMEM);
  }
  SECTION("and so many as there is room for") {
    REQUIRE(post_sends(a, std::vector<unsigned>(6, told), 0) == 0);
    CHECK(write() == 0);
    CHECK(write() == 0);
    CHECK(write() == ENOMEM);
  }
}

TEST_CASE("what is slow to come sleeps in the post, where nobody else waits for it") {
  // Copied: of a region that small requests have been sent from before.
  enum class How : uint8_t { plain, extended, receive, copied };
  const How how = GENERATE(How::plain, How::extended, How::receive, How::copied);
  const SlowPage page;
  if (!page) {
    adverb::test::skip("userfaultfd is not permitted");
    return;
  }
  Two two({}, "default");
  Program& a = two.a;
  ibv_mr* const mr =
      a.verbs.reg_mr(a.pd, page.both().data(), page.both().size(), IBV_ACCESS_LOCAL_WRITE);
  REQUIRE(mr != nullptr);
  model::Qp& qp = *a.verbs.managed(a.qp);
  ibv_sge before{reinterpret_cast<uintptr_t>(page.both().data()), 64, mr->lkey};
  for (int i = 0; i < 4 && how == How::copied; ++i) {
    ibv_send_wr wr{};
    ibv_send_wr* bad = nullptr;
    wr.sg_list = &before;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {two.b.address(0), two.b.mr->rkey};
    REQUIRE(model::post_send(qp, &wr, &bad) == 0);
    two.settle();
    REQUIRE(a.poll().size() == 1);
  }
  ibv_sge sge{reinterpret_cast<uintptr_t>(page.memory().data()), 64, mr->lkey};
  int rc = -1;
  std::thread poster([&] {
    if (how == How::receive) {
      ibv_recv_wr wr{1, nullptr, &sge, 1};
      ibv_recv_wr* bad = nullptr;
      rc = model::post_recv(qp, &wr, &bad);
      return;
    }
    ibv_send_wr wr{};
    wr.wr_id = 1;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = how == How::copied ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {two.b.address(0), two.b.mr->rkey};
    if (how != How::extended) {
      ibv_send_wr* bad = nullptr;
      rc = model::post_send(qp, &wr, &bad);
      return;
    }
    qp.begin();
    model::Qp::Built& built = qp.build();
    built.wr = wr;
    built.sges = {sge};
    rc = qp.commit();
  });
  CHECK(page.is_touched());
  CHECK(a.poll().empty());
  CHECK(two.b.receive(1, 0, 8) == 0);
  CHECK(a.post(IBV_WR_SEND, 2, 0, 8, two.b, 0, 0) == 0); // the same queue pair
  page.come();
  poster.join();
  CHECK(rc == 0);
}
