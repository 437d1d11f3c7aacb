// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// READs by views of a peer's memory: what the program sees of them, and when. The views are copies
// of the owner's memory, where pages are away as a test says.
#include "two_programs.h"

#include "model/qp.h"
#include "registration/recalls.h"
#include "registration/view_source.h"
#include "registration/views.h"

#include <algorithm>
#include <array>
#include <list>
#include <span>

using namespace adverb;
using namespace adverb::test;
using namespace std::chrono_literals;
using observe::Counter;

namespace {

constexpr size_t page = registration::pattern_bytes;

// What a region's memory is not made of (fill()).
constexpr std::byte mark{0xd7};

// Of one region; each view is all of it.
struct Copies final : registration::ViewSource {
  int begin(registration::Image& image, std::string&) override {
    image.number = ++images;
    image.pattern.fill(mark);
    return 0;
  }
  int build(const registration::Image& image, uintptr_t, registration::View& view,
            std::string&) override {
    Copy& copy = all.emplace_back();
    copy.image = image.number;
    copy.start = image.start;
    copy.room.resize(image.length + page);
    // At the same place within its page, as devices want it.
    const auto into = (copy.start - reinterpret_cast<uintptr_t>(copy.room.data())) % page;
    copy.bytes = std::span(copy.room).subspan(into, image.length);
    std::ranges::fill(copy.bytes, mark);
    view.from = image.start;
    view.to = image.start + image.length;
    copy.mr = FakeFabric::real().ibv_reg_mr_iova(image.pd, copy.bytes.data(), copy.bytes.size(),
                                                 image.start + image.shift, IBV_ACCESS_REMOTE_READ);
    view.rkey = copy.mr->rkey;
    const registration::Shown shown{view.from, view.to};
    show(image, {&shown, 1});
    return 0;
  }
  void give_back(const registration::Image&, const registration::View& view) noexcept override {
    const auto it = std::ranges::find_if(
        all, [&](const Copy& copy) { return copy.mr != nullptr && copy.mr->rkey == view.rkey; });
    FakeFabric::real().ibv_dereg_mr(std::exchange(it->mr, nullptr));
  }
  void show(const registration::Image&,
            std::span<const registration::Shown> what) noexcept override {
    const Copy& copy = all.back();
    for (const auto& part : what)
      memcpy(copy.bytes.data() + (part.from - copy.start), reinterpret_cast<const void*>(part.from),
             part.to - part.from);
  }
  void end(const registration::Image& image) noexcept override {
    for (const Copy& copy : all)
      if (copy.image == image.number)
        std::ranges::fill(copy.bytes, mark);
  }

  // The page of the newest that has this address is away.
  void take(uintptr_t address) {
    const Copy& copy = all.back();
    const uintptr_t from = std::max(address & ~(page - 1), copy.start);
    const uintptr_t to = std::min((address & ~(page - 1)) + page, copy.start + copy.bytes.size());
    std::ranges::fill(copy.bytes.subspan(from - copy.start, to - from), mark);
  }
  size_t registered() const {
    return static_cast<size_t>(
        std::ranges::count_if(all, [](const Copy& copy) { return copy.mr != nullptr; }));
  }

  struct Copy {
    uint32_t image = 0;
    std::vector<std::byte> room;
    std::span<std::byte> bytes; // of it: what the device reads
    uintptr_t start = 0;
    ibv_mr* mr = nullptr;
  };
  std::list<Copy> all;
  uint32_t images = 0;
};

constexpr const char* np = R"({"version": 1, "rules": [{"register": "np"}]})";

// `a` reads b's memory.
struct Viewable {
  explicit Viewable(const char* policy = np, Program::Wanted wanted = {})
      : two(wanted, policy, 1 << 20, transfer::version_views) {
    fill(b, 3);
    b.bench.world.parts.view_source.put(copies);
    b.bench.world.parts.recalls.put(recalls);
  }
  // Until a READ goes by a view, or eight have not.
  bool read_until_viewed(uint32_t bytes = 64) {
    const uint64_t before = a.count(Counter::posts_np_read);
    for (int i = 0; i < 8 && a.count(Counter::posts_np_read) == before; ++i) {
      read(0, 0, bytes);
      two.settle();
      a.bench.clock.time += 10ms;
    }
    return a.count(Counter::posts_np_read) == before + 1;
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
  // A view of b's memory, as another peer gets it.
  std::shared_ptr<registration::Grant> view() {
    registration::Regions& regions = b.verbs.managed(b.qp)->regions();
    std::shared_ptr<registration::Grant> grant;
    for (int i = 0; i < 8 && regions.view(b.mr->rkey, b.address(0), 64, grant) != 0; ++i)
      b.bench.service.run_tasks();
    REQUIRE(grant != nullptr);
    return grant;
  }
  bool came(size_t to, size_t from, size_t bytes) const {
    return memcmp(a.memory.data() + to, b.memory.data() + from, bytes) == 0;
  }
  bool untouched() const {
    return std::ranges::all_of(a.memory, [](unsigned char byte) { return byte == 0; });
  }

  std::shared_ptr<Copies> copies = std::make_shared<Copies>();
  std::shared_ptr<registration::Recalls> recalls =
      std::make_shared<registration::Recalls>(registration::Recalls::Hooks{
          [this] { b.bench.service.run([this] { recalls->serve(); }); }, [] {},
          [](const std::function<bool()>& done, std::chrono::milliseconds) { return done(); }});
  Two two;
  Program& a = two.a;
  Program& b = two.b;
};

// And has a view of it.
struct Viewed : Viewable {
  explicit Viewed(const char* policy = np, Program::Wanted wanted = {}) : Viewable(policy, wanted) {
    REQUIRE(read_until_viewed());
    a.memory.assign(a.memory.size(), 0);
  }
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
  // Half of it is for queues: one slab, of blocks of one size.
  Viewed v(R"({"version": 1, "staging": "128KiB", "rules": [{"register": "np"}]})");
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
  // Its block has been given back, so that there may be others of another size.
  attr.qp_state = IBV_QPS_RESET;
  REQUIRE(v.a.verbs.modify_qp(v.a.qp, &attr, IBV_QP_STATE) == 0);
  v.a.connect(v.b);
  v.two.settle();
  CHECK(v.read_until_viewed(4096));
}

TEST_CASE("READs that find no staging wait for those before them, or go another way", "[views]") {
  // Half of it is for queues, in slabs of 64 KiB: eight of these READs, or none.
  const bool any = GENERATE(true, false);
  Program::Wanted wanted;
  wanted.cqe = 32;
  wanted.cap = {16, 16, 1, 1, 0};
  Viewable v(any ? R"({"version": 1, "staging": "256KiB", "rules": [{"register": "np"}]})"
                 : R"({"version": 1, "staging": "64KiB", "rules": [{"register": "np"}]})",
             wanted);
  REQUIRE(v.read_until_viewed() == any);
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

TEST_CASE("where a region changes a READ by its view finds out, and it is called back", "[views]") {
  Viewed v;
  const bool with_one_under_way = GENERATE(false, true);
  if (with_one_under_way)
    v.post(0, 256, 64);
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  REQUIRE(v.b.verbs.rereg_mr(v.b.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, access) == 0);
  CHECK(v.b.count(Counter::recalls_overdue) == 0); // nobody is waited for
  if (with_one_under_way) {
    const auto done = drain(v.two, v.a);
    REQUIRE(done.size() == 1);
    CHECK(done[0].status == IBV_WC_SUCCESS);
    CHECK(v.came(0, 256, 64));
  } else {
    v.read(4096, 8192, 64); // the notice is under way
    CHECK(v.a.count(Counter::reads_missed) == 1);
  }
  CHECK(v.b.count(Counter::recalls) == 1);
  v.a.bench.clock.time += 1s;
  CHECK(v.read_until_viewed());
  CHECK(v.copies->registered() == 2);
  v.b.bench.service.pass(2 * registration::Views::idle);
  CHECK(v.copies->registered() == 1); // the one that has been given back
}

TEST_CASE("a view that a peer has stays while it does, however often its region changes",
          "[views]") {
  Viewable v;
  const auto change = [&] {
    return v.b.verbs.rereg_mr(v.b.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  };
  const auto kept = v.view();
  for (int changes = 1; changes <= 12; ++changes) {
    REQUIRE(change() == 0);
    registration::Regions::revoke(v.view());
    CHECK(v.copies->registered() == 2); // the one that is kept, and the newest
  }
  registration::Regions::revoke(kept);
  REQUIRE(change() == 0);
  CHECK(v.copies->registered() == 0);
}

TEST_CASE("where a region goes to another domain its views stay until they are back, or the domain "
          "ends",
          "[views]") {
  Viewed v;
  ibv_pd* const former = v.b.pd;
  ibv_pd* const other = v.b.verbs.alloc_pd(former->context);
  REQUIRE(other != nullptr);
  const auto move = [&](ibv_pd* to) {
    return v.b.verbs.rereg_mr(v.b.mr, IBV_REREG_MR_CHANGE_PD, to, nullptr, 0, 0);
  };
  REQUIRE(move(other) == 0);
  CHECK(v.copies->registered() == 1);
  const auto kept = v.view(); // in that domain
  const bool is_back = GENERATE(false, true);
  if (is_back)
    v.two.settle(); // the peer has heard of it
  REQUIRE(move(former) == 0);
  // By what it has, or by the CPU: as if it had stayed.
  v.read(0, 256, 64);
  v.two.settle();
  REQUIRE(v.b.verbs.dealloc_pd(other) == 0);
  v.a.bench.clock.time += 1s;
  CHECK(v.read_until_viewed());
}

TEST_CASE("what of a region's former views is not given back ends with it", "[views]") {
  Viewed v;
  const auto change = [&] {
    return v.b.verbs.rereg_mr(v.b.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  };
  REQUIRE(change() == 0);
  CHECK(v.copies->registered() == 1);
  REQUIRE(v.b.verbs.dereg_mr(v.b.mr) == 0);
  CHECK(v.copies->registered() == 0);
  v.b.mr = v.b.verbs.reg_mr(v.b.pd, v.b.memory.data(), v.b.memory.size(), IBV_ACCESS_REMOTE_READ);
}

TEST_CASE("a READ by a view comes to its place though the program does not poll", "[views]") {
  Viewed v;
  const bool away = GENERATE(false, true);
  const unsigned flags = GENERATE(unsigned{IBV_SEND_SIGNALED}, 0U);
  if (away)
    v.copies->take(v.b.address(8192));
  v.post(0, 8192, 256, flags);
  CHECK(v.untouched());
  for (int i = 0; i < 8; ++i) {
    v.a.bench.service.pass(4ms);
    v.two.settle();
  }
  CHECK(v.came(0, 8192, 256));
  CHECK(v.a.poll().size() == (flags != 0 ? 1 : 0));
}
