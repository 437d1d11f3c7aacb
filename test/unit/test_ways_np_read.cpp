// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// READs by views of a peer's memory: what the program sees of them, and when. The views are copies
// of the owner's memory, where pages are away as a test says.
#include "two_programs.h"

#include "registration/recalls.h"
#include "registration/view_source.h"

#include <algorithm>
#include <array>
#include <span>

using namespace adverb;
using namespace adverb::test;
using namespace std::chrono_literals;
using observe::Counter;

namespace {

constexpr size_t page = registration::pattern_bytes;

// What a region's memory is not made of (fill()).
constexpr std::byte mark{0xd7};

// One region's view, all of it.
struct Copies final : registration::ViewSource {
  int begin(registration::Image& image, std::string&) override {
    image.number = 1;
    image.pattern.fill(mark);
    return 0;
  }
  int build(const registration::Image& image, uintptr_t, registration::View& view,
            std::string&) override {
    start = image.start;
    room.resize(image.length + page);
    // At the same place within its page, as devices want it.
    const auto into = (start - reinterpret_cast<uintptr_t>(room.data())) % page;
    bytes = std::span(room).subspan(into, image.length);
    std::ranges::fill(bytes, mark);
    view.from = image.start;
    view.to = image.start + image.length;
    mr = FakeFabric::real().ibv_reg_mr_iova(image.pd, bytes.data(), bytes.size(),
                                            image.start + image.shift, IBV_ACCESS_REMOTE_READ);
    view.rkey = mr->rkey;
    const registration::Shown all{view.from, view.to};
    show(image, {&all, 1});
    return 0;
  }
  void give_back(const registration::Image&, const registration::View&) noexcept override {
    FakeFabric::real().ibv_dereg_mr(std::exchange(mr, nullptr));
  }
  void show(const registration::Image&,
            std::span<const registration::Shown> what) noexcept override {
    for (const auto& part : what)
      memcpy(bytes.data() + (part.from - start), reinterpret_cast<const void*>(part.from),
             part.to - part.from);
  }
  void end(const registration::Image&) noexcept override { std::ranges::fill(bytes, mark); }

  // The page that has this address is away.
  void take(uintptr_t address) {
    const uintptr_t from = std::max(address & ~(page - 1), start);
    const uintptr_t to = std::min((address & ~(page - 1)) + page, start + bytes.size());
    std::ranges::fill(bytes.subspan(from - start, to - from), mark);
  }

  std::vector<std::byte> room;
  std::span<std::byte> bytes; // of it: what the device reads
  uintptr_t start = 0;
  ibv_mr* mr = nullptr;
};

// `a` has a view of b's memory.
struct Viewed {
  explicit Viewed(const char* policy = R"({"version": 1, "rules": [{"register": "np"}]})",
                  Program::Wanted wanted = {}, bool by_views = true)
      : two(wanted, policy, 1 << 20, transfer::version_views) {
    fill(b, 3);
    b.bench.world.parts.view_source.put(copies);
    b.bench.world.parts.recalls.put(recalls);
    for (int i = 0; i < 8 && a.count(Counter::posts_np_read) == 0; ++i) {
      read(0, 0, 64);
      two.settle();
      a.bench.clock.time += 10ms;
    }
    REQUIRE(a.count(Counter::posts_np_read) == (by_views ? 1 : 0));
    a.memory.assign(a.memory.size(), 0);
  }
  ~Viewed() {
    // What the programs have is given back before what it is of.
    two.settle();
  }
  void post(size_t to, size_t from, uint32_t bytes, unsigned flags = IBV_SEND_SIGNALED) {
    REQUIRE(a.post(IBV_WR_RDMA_READ, to, to, bytes, b, from, b.mr->rkey, flags) == 0);
  }
  void read(size_t to, size_t from, uint32_t bytes) {
    post(to, from, bytes);
    const auto done = drain(two, a);
    REQUIRE(done.size() == 1);
    CHECK(done[0].status == IBV_WC_SUCCESS);
    CHECK(done[0].byte_len == bytes);
    CHECK(came(to, from, bytes));
  }
  bool came(size_t to, size_t from, size_t bytes) const {
    return memcmp(a.memory.data() + to, b.memory.data() + from, bytes) == 0;
  }
  bool untouched() const {
    return std::ranges::all_of(a.memory, [](unsigned char byte) { return byte == 0; });
  }

  std::shared_ptr<Copies> copies = std::make_shared<Copies>();
  // b's: its calls let everything happen while they wait.
  std::shared_ptr<registration::Recalls> recalls =
      std::make_shared<registration::Recalls>(registration::Recalls::Hooks{
          [this] { b.bench.service.run([this] { recalls->serve(); }); }, [] {},
          [this](const std::function<bool()>& done, std::chrono::milliseconds) {
            for (int i = 0; i < 8 && !done(); ++i) {
              two.settle();
              a.poll();
            }
            return done();
          }});
  Two two;
  Program& a = two.a;
  Program& b = two.b;
};

} // namespace

TEST_CASE("a READ by a view reaches the program whole and good", "[views]") {
  Viewed v;
  v.copies->take(v.b.address(5000));
  v.post(100, 1001, 9000);
  // The device is through with it, and a thread that looks sees nothing of it.
  CHECK(v.untouched());
  CHECK(v.a.poll().empty()); // found out: the page is asked for
  CHECK(v.untouched());
  const auto done = drain(v.two, v.a);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(v.came(100, 1001, 9000));
  CHECK(v.a.count(Counter::reads_missed) == 1);
  v.read(20000, 1001, 9000); // and is shown now
  CHECK(v.a.count(Counter::reads_missed) == 1);
}

TEST_CASE("where the elements of a READ by a view overlap, the later one counts", "[views]") {
  Viewed v;
  v.copies->take(v.b.address(8192));
  std::array<ibv_sge, 1> one{{{v.a.address(64), 16, v.a.mr->lkey}}};
  // Two READs that overlap by half a word, of which the first one meets the page that is away.
  ibv_send_wr second{};
  std::array<ibv_sge, 1> other{{{v.a.address(78), 16, v.a.mr->lkey}}};
  second.wr_id = 2;
  second.sg_list = other.data();
  second.num_sge = 1;
  second.opcode = IBV_WR_RDMA_READ;
  second.send_flags = IBV_SEND_SIGNALED;
  second.wr.rdma = {v.b.address(40000), v.b.mr->rkey};
  ibv_send_wr first = second;
  first.wr_id = 1;
  first.sg_list = one.data();
  first.next = &second;
  first.wr.rdma.remote_addr = v.b.address(8192);
  ibv_send_wr* bad = nullptr;
  REQUIRE(model::post_send(*v.a.verbs.managed(v.a.qp), &first, &bad) == 0);
  REQUIRE(drain(v.two, v.a).size() == 2);
  CHECK(v.came(64, 8192, 14));
  CHECK(v.came(78, 40000, 16));
}

TEST_CASE("what has landed by a view is judged when the link is lost before it is looked at",
          "[views]") {
  Viewed v;
  const bool away = GENERATE(false, true);
  if (away)
    v.copies->take(v.b.address(8192));
  v.post(0, 8192, 256);
  v.two.joint.pairs.at(0).client->end();
  const auto polled = v.a.poll();
  if (away) {
    CHECK(polled.empty());
    CHECK(v.untouched());
    return;
  }
  REQUIRE(polled.size() == 1);
  CHECK(polled[0].status == IBV_WC_SUCCESS);
  CHECK(v.came(0, 8192, 256));
}

TEST_CASE("what a READ by a view was to bring is dropped with the queue pair's requests",
          "[views]") {
  Viewed v;
  v.copies->take(v.b.address(8192));
  v.post(0, 8192, 256);
  CHECK(v.a.poll().empty()); // it has missed
  ibv_qp_attr attr{};
  attr.qp_state = GENERATE(IBV_QPS_ERR, IBV_QPS_RESET);
  REQUIRE(v.a.verbs.modify_qp(v.a.qp, &attr, IBV_QP_STATE) == 0);
  const auto done = drain(v.two, v.a);
  CHECK(done.size() == (attr.qp_state == IBV_QPS_ERR ? 1 : 0));
  for (const auto& wc : done)
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
  CHECK(v.untouched());
}

TEST_CASE("READs that find no staging wait for those before them, or go another way", "[views]") {
  // Half of it is for queues, in slabs of 64 KiB: eight of these READs, or none.
  const bool any = GENERATE(true, false);
  Program::Wanted wanted;
  wanted.cqe = 32;
  wanted.cap = {16, 16, 1, 1, 0};
  Viewed v(any ? R"({"version": 1, "staging": "256KiB", "rules": [{"register": "np"}]})"
               : R"({"version": 1, "staging": "64KiB", "rules": [{"register": "np"}]})",
           wanted, any);
  const uint64_t before = v.a.count(Counter::posts_np_read);
  constexpr uint32_t bytes = 16384;
  for (size_t i = 0; i < 16; ++i)
    v.post(i % 4 * bytes, (i + i / 4) % 4 * bytes, bytes, i == 15 ? IBV_SEND_SIGNALED : 0);
  const auto done = drain(v.two, v.a);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  for (size_t i = 12; i < 16; ++i)
    CHECK(v.came(i % 4 * bytes, (i + i / 4) % 4 * bytes, bytes));
  CHECK(v.a.count(Counter::posts_np_read) - before == (any ? 16 : 0));
}

TEST_CASE("a view is called back before its region changes", "[views]") {
  Viewed v;
  const bool with_one_under_way = GENERATE(false, true);
  if (with_one_under_way)
    v.post(0, 256, 64);
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  REQUIRE(v.b.verbs.rereg_mr(v.b.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, access) == 0);
  CHECK(v.b.count(Counter::recalls) == 1);
  CHECK(v.b.count(Counter::recalls_overdue) == 0);
  if (with_one_under_way)
    CHECK(v.came(0, 256, 64));
  v.read(4096, 8192, 64);
  v.a.bench.clock.time += 1s;
  const uint64_t before = v.a.count(Counter::posts_np_read);
  for (int i = 0; i < 8 && v.a.count(Counter::posts_np_read) == before; ++i) {
    v.read(4096, 8192, 64);
    v.a.bench.clock.time += 10ms;
  }
  CHECK(v.a.count(Counter::posts_np_read) == before + 1);
}
