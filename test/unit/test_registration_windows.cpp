// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A region follows addresses and a window has pages: none is used for what its addresses do not
// mean any more.
#include "memory/copy.h"
#include "memory/folios.h"
#include "memory/monitor.h"
#include "region_fixture.h"
#include "registration/send_sources.h"
#include "skip.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace {

using namespace region_test;
using adverb::memory::Range;

// Hears what it is told by a test.
class Told final : public adverb::memory::Monitor {
public:
  bool watch(Range what, Range) override {
    if (deaf)
      return false;
    watched.push_back(what);
    return true;
  }
  void unwatch(Range what) noexcept override {
    const auto at = std::ranges::find_if(
        watched, [&](const Range& w) { return w.from == what.from && w.to == what.to; });
    CHECK(at != watched.end());
    if (at != watched.end())
      watched.erase(at);
  }
  void changed(uintptr_t from, size_t bytes, bool coming = false) {
    begin();
    tell({from, from + bytes}, coming);
    end();
  }

  bool deaf = false;
  std::vector<Range> watched;
};

struct Watched : Fixture {
  explicit Watched(const char* limits = R"("staging": "1MiB", "pinned_budget": "1MiB")")
      : Fixture(limits) {
    bench.world.parts.monitor.put(monitor);
  }
  // The key of the window by which the element goes out, or comes in.
  uint32_t use(const ibv_mr* mr, uint64_t offset, Hold& hold, bool receive = false) {
    ibv_sge sge = element(mr, offset, copy_below);
    REQUIRE(localize(sge, hold, receive ? write_right : 0, !receive) == 0);
    REQUIRE(hold.window != nullptr);
    return sge.lkey;
  }
  uint32_t use_once(const ibv_mr* mr, uint64_t offset) {
    Hold hold;
    const uint32_t key = use(mr, offset, hold);
    regions.release(staging, hold);
    return key;
  }
  int64_t pinned() const {
    return static_cast<int64_t>(bench.world.counters.value(adverb::observe::Gauge::pinned_bytes));
  }
  bool lives(uint32_t key) const { return device.find(key) != nullptr; }

  std::shared_ptr<Told> monitor = std::make_shared<Told>();
};

TEST_CASE("an idle window ends with the first change of its addresses, and no other does") {
  Watched f;
  ibv_mr* mr = f.add("none");
  const uint32_t first = f.use_once(mr, 0);
  const uint32_t second = f.use_once(mr, 2 * page);
  CHECK(f.use_once(mr, 0) == first);
  CHECK(f.monitor->watched.size() == 2);
  f.monitor->changed(f.memory.address(), page);
  const uint32_t fresh = f.use_once(mr, 0);
  CHECK(fresh != first);
  CHECK_FALSE(f.lives(first));
  CHECK(f.use_once(mr, 2 * page) == second);
  CHECK(f.monitor->watched.size() == 2);
  f.regions.remove(mr);
  CHECK(f.monitor->watched.empty());
}

TEST_CASE(
    "a window that is in use when its addresses change is nobody else's, and ends with its use") {
  Watched f;
  ibv_mr* mr = f.add("none");
  Hold under_way;
  const uint32_t first = f.use(mr, 0, under_way);
  f.monitor->changed(f.memory.address(), page);
  const uint32_t second = f.use_once(mr, 0);
  CHECK(second != first);
  CHECK(f.lives(first)); // as in stock: what is under way has the pages that it had
  f.regions.release(f.staging, under_way);
  CHECK_FALSE(f.lives(first));
  CHECK(f.use_once(mr, 0) == second);
  f.regions.remove(mr);
}

TEST_CASE("where changes cannot be heard of a window is of one request") {
  Watched f;
  ibv_mr* mr = f.add("none");
  f.monitor->deaf = true;
  Hold one;
  Hold other;
  const uint32_t first = f.use(mr, 0, one);
  const uint32_t second = f.use(mr, 0, other);
  CHECK(first != second);
  f.regions.release(f.staging, one);
  CHECK_FALSE(f.lives(first));
  CHECK(f.lives(second));
  f.regions.release(f.staging, other);
  CHECK_FALSE(f.lives(second));
  CHECK(f.pinned() == 0);
  f.regions.remove(mr);
}

TEST_CASE("a window whose addresses change while it is made is of one request") {
  Watched f;
  ibv_mr* mr = f.add("none");
  f.device.on_register = [&] { f.monitor->changed(f.memory.address(), page); };
  const uint32_t first = f.use_once(mr, 0);
  f.device.on_register = nullptr;
  CHECK_FALSE(f.lives(first));
  const uint32_t second = f.use_once(mr, 0);
  CHECK(f.lives(second));
  // Of what is about to go the device may have had the pages of before.
  f.monitor->changed(f.memory.address(), page, true);
  CHECK_FALSE(f.lives(f.use_once(mr, 0)));
  CHECK_FALSE(f.lives(second));
  CHECK(f.lives(f.use_once(mr, 2 * page)));
  f.regions.remove(mr);
  CHECK(f.monitor->watched.empty());
}

TEST_CASE("who sends from a window again and again without asking meets each change") {
  Watched f;
  ibv_mr* mr = f.add("none");
  adverb::Atomic<uint32_t> heard{0};
  SendSources sources(f.bench.world, f.regions, f.staging, &f.device.pd, copy_below, heard);
  const ibv_sge own = f.element(mr, 0, copy_below);
  Hold hold;
  const uint32_t key = f.use(mr, 0, hold);
  sources.learn(own, hold.window);
  f.regions.release(f.staging, hold);
  ibv_sge instead{};
  REQUIRE(sources.borrow(own, 0, instead));
  CHECK(instead.lkey == key);
  f.monitor->changed(f.memory.address(), page);
  CHECK_FALSE(sources.borrow(own, 0, instead));
  // Elsewhere, and it is found to stand still.
  const uint32_t fresh = f.use(mr, 0, hold);
  sources.learn(own, hold.window);
  f.regions.release(f.staging, hold);
  f.monitor->changed(f.memory.address() + (2 * page), page);
  CHECK_FALSE(sources.borrow(own, 0, instead));
  CHECK(f.use(mr, 0, hold) == fresh);
  sources.learn(own, hold.window);
  f.regions.release(f.staging, hold);
  CHECK(sources.borrow(own, 0, instead));
  CHECK(instead.lkey == fresh);
  sources.give_back();
  f.regions.remove(mr);
}

TEST_CASE(
    "receives beside each other share a block, counted once, and never more than the region") {
  Watched f(R"("staging": "1MiB", "pinned_budget": "4MiB")");
  Mapped large(1 << 20);
  Wanted wanted = f.wanted(write_right);
  wanted.start = large.memory + 64;
  wanted.length = large.bytes - 128;
  wanted.iova = large.address() + 64;
  ibv_mr* mr = nullptr;
  REQUIRE_FALSE(f.regions.add(f.backend("none"), wanted, mr));
  std::vector<Hold> posted;
  for (uint64_t at = 64; at + copy_below <= large.bytes - 64; at += copy_below) {
    ibv_sge sge{large.address() + at, copy_below, mr->lkey};
    REQUIRE(f.localize(sge, posted.emplace_back(), write_right, false) == 0);
  }
  CHECK(posted.size() == 1023);
  CHECK(f.device.regions.size() <= 9); // four blocks, and one where a receive lies across two
  CHECK(f.pinned() <= static_cast<int64_t>(wanted.length) + (4 * 512 << 10));
  for (auto& hold : posted)
    f.regions.release(f.staging, hold);
  f.regions.remove(mr);
  CHECK(f.pinned() == 0);
}

// One region of a mebibyte, of four whole blocks, and small receives.
struct Receives : Watched {
  static constexpr uint64_t block = 256 << 10;
  explicit Receives(const char* limits) : Watched(limits) {
    Wanted all = wanted(write_right);
    all.start = memory_;
    all.length = 4 * block;
    all.iova = address(0);
    madvise(memory_, all.length, MADV_NOHUGEPAGE); // which would come whole
    REQUIRE_FALSE(regions.add(backend("none"), all, mr));
  }
  ~Receives() { regions.remove(mr); }
  Receives(const Receives&) = delete;
  Receives& operator=(const Receives&) = delete;
  void post(uint64_t offset, uint32_t bytes, Hold& hold) {
    ibv_sge sge{address(offset), bytes, mr->lkey};
    REQUIRE(localize(sge, hold, write_right, false) == 0);
  }
  void end(Hold& hold) { regions.release(staging, hold); }

  std::byte* at(uint64_t offset) const { return memory_ + offset; }
  uint64_t address(uint64_t offset) const { return reinterpret_cast<uintptr_t>(at(offset)); }

  ibv_mr* mr = nullptr;

private:
  Mapped large_{5 * block};
  std::byte* const memory_ =
      large_.memory + ((block - large_.address() % block) % block); // where one begins
};

TEST_CASE("a small receive gets a window while the budget has room, else it is copied") {
  Receives f(R"("staging": "1MiB", "pinned_budget": "640KiB")");
  ibv_mr* const other = f.add("none");
  const uint32_t idle = f.use_once(other, 0);
  const uint64_t room = f.bench.world.budgets().room_for_windows();
  const uint64_t block = Receives::block;
  REQUIRE(room >= block);
  REQUIRE(room < 4 * block);
  Hold holds[5];
  uint64_t windows = 0;
  for (uint64_t i = 0; i < 4; ++i) {
    f.post(i * block, 16 << 10, holds[i]);
    windows += holds[i].window != nullptr;
    CHECK((holds[i].window != nullptr) == (windows * block <= room && !holds[i].block));
  }
  CHECK(windows == room / block);
  CHECK(f.lives(idle)); // it would have been given back in vain
  CHECK(f.bench.world.counters.value(adverb::observe::Gauge::recv_forced_bytes) == 0);
  f.post((3 * block) + (64 << 10), (16 << 10) + 1, holds[4]); // it is none any more
  CHECK(holds[4].window != nullptr);
  CHECK(f.bench.world.counters.value(adverb::observe::Gauge::recv_forced_bytes) != 0);
  for (auto& hold : holds)
    f.end(hold);
  f.regions.remove(other);
}

TEST_CASE("a small receive of memory whose changes are not heard of is copied") {
  Receives f(R"("staging": "1MiB", "pinned_budget": "4MiB")");
  f.monitor->deaf = true;
  Hold hold;
  f.post(0, 4096, hold);
  CHECK(hold.window == nullptr);
  CHECK(hold.block);
  f.end(hold);
}

TEST_CASE("a receive comes to no place before one that was posted there earlier and is copied") {
  Receives f(R"("staging": "1MiB", "pinned_budget": "4MiB")");
  const uint32_t bytes = GENERATE(4096U, 64U << 10);
  Hold earlier;
  Hold later;
  f.post(0, 64, earlier);
  REQUIRE(earlier.block);
  f.post(0, bytes, later);
  CHECK(later.window == nullptr);
  CHECK(later.block);
  f.end(later);
  f.end(earlier);
  f.post(0, bytes, later);
  CHECK(later.window != nullptr);
  f.end(later);
}

TEST_CASE("a small send gets a window of what lies around it, if that is in memory") {
  Receives f(R"("staging": "1MiB", "pinned_budget": "4MiB")");
  const uint64_t part = 64 << 10;
  memset(f.at(0), 1, part);
  const auto size_of_window = [&](uint64_t offset) {
    Hold hold;
    ibv_sge sge{f.address(offset), copy_below, f.mr->lkey};
    REQUIRE(f.localize(sge, hold) == 0);
    REQUIRE(hold.window != nullptr);
    const uint64_t size = hold.window->end - hold.window->start;
    f.end(hold);
    return size;
  };
  CHECK(size_of_window(page) == part);
  CHECK(size_of_window(9 * page) == part); // the same
  CHECK(f.monitor->watched.size() == 1);
  // Nobody has touched the next part but for one page.
  *f.at(part + (3 * page)) = std::byte{1};
  CHECK(size_of_window(part + (3 * page)) == page);
  CHECK_FALSE(adverb::memory::is_here(f.at(part), part));
}

TEST_CASE("a window in a huge page is of all of it, and is charged for that") {
  const bool has_room = GENERATE(true, false);
  Watched f(has_room ? R"("staging": "1MiB", "pinned_budget": "4MiB")"
                     : R"("staging": "1MiB", "pinned_budget": "1MiB")");
  constexpr size_t huge = adverb::memory::huge_page;
  Mapped room(2 * huge);
  const uint64_t at = (room.address() + huge - 1) & ~(huge - 1);
  auto* const memory = reinterpret_cast<std::byte*>(at);
  madvise(memory, huge, MADV_HUGEPAGE);
  memset(memory, 1, huge);
  if (!adverb::memory::is_huge(at)) {
    adverb::test::skip("this host makes no huge pages");
    return;
  }
  Wanted wanted = f.wanted();
  wanted.start = memory + page; // it has not the first
  wanted.length = huge - page;
  wanted.iova = at + page;
  ibv_mr* mr = nullptr;
  REQUIRE_FALSE(f.regions.add(f.backend("none"), wanted, mr));
  const auto send = [&](uint64_t offset, Hold& hold) {
    ibv_sge sge{wanted.iova + offset, copy_below, mr->lkey};
    REQUIRE(f.localize(sge, hold) == 0);
    return sge.lkey;
  };
  const int64_t before = f.pinned();
  Hold hold;
  const uint32_t first = send(1 << 20, hold);
  CHECK(f.pinned() - before == static_cast<int64_t>(huge - page));
  CHECK(f.bench.world.budgets().windows() == huge);
  CHECK(f.bench.world.counters.value(adverb::observe::Gauge::send_forced_bytes) ==
        (has_room ? 0 : 1 << 20));
  f.regions.release(f.staging, hold);
  CHECK(f.lives(first) == has_room); // there is more of it than there may be
  if (has_room) {
    CHECK(send(0, hold) == first);
    f.regions.release(f.staging, hold);
  }
  f.regions.remove(mr);
  CHECK(f.pinned() == before);
  CHECK(f.bench.world.budgets().windows() == 0);
}

TEST_CASE("contexts share the budget, and an idle one does not keep it from a busy one") {
  Watched f;
  Mapped large(4 << 20);
  Regions other{f.bench.world, &f.device.context};
  const auto in = [&](Regions& regions) {
    Wanted wanted = f.wanted();
    wanted.start = large.memory;
    wanted.length = large.bytes;
    wanted.iova = large.address();
    ibv_mr* mr = nullptr;
    REQUIRE_FALSE(regions.add(regions.backend(*policy::find_backend("none")), wanted, mr));
    return mr;
  };
  constexpr uint32_t part = 128 << 10;
  const auto send_all = [&](Regions& regions, const ibv_mr* mr) {
    for (uint64_t at = 0; at < large.bytes; at += part) {
      ibv_sge sge{large.address() + at, part, mr->lkey};
      Hold hold;
      REQUIRE(regions.localize(&f.device.pd, f.staging, copy_below, 0, true, sge, hold) == 0);
      regions.release(f.staging, hold);
    }
  };
  ibv_mr* const first = in(f.regions);
  ibv_mr* const second = in(other);
  const int64_t before = f.pinned(); // of keys and such
  send_all(f.regions, first);
  CHECK(f.pinned() - before == 1 << 20);
  send_all(other, second);
  CHECK(f.pinned() - before == 1 << 20);
  f.regions.remove(first);
  CHECK(f.pinned() - before >= 1 << 19); // that is the other's
  other.remove(second);
  CHECK(f.pinned() == before);
  CHECK(f.bench.world.budgets().windows() == 0);
  other.close();
}

TEST_CASE("a receive for whose block there is no room has a window of its own") {
  Watched f;
  Mapped large(1 << 20);
  Wanted wanted = f.wanted(write_right);
  wanted.start = large.memory;
  wanted.length = large.bytes;
  wanted.iova = large.address();
  ibv_mr* mr = nullptr;
  REQUIRE_FALSE(f.regions.add(f.backend("none"), wanted, mr));
  f.device.limit = page;
  for (const auto& [key, registered] : f.device.regions)
    f.device.limit += registered->mr.length;
  Hold hold;
  ibv_sge sge{large.address() + (16 * page), copy_below, mr->lkey};
  REQUIRE(f.localize(sge, hold, write_right, false) == 0);
  CHECK(f.pinned() == page);
  f.regions.release(f.staging, hold);
  f.regions.remove(mr);
  CHECK(f.monitor->watched.empty());
}

} // namespace
