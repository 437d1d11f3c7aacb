// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A region follows addresses and a window has pages: none is used for what its addresses do not
// mean any more.
#include "memory/monitor.h"
#include "region_fixture.h"
#include "registration/send_sources.h"

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
  Watched() : Fixture(R"("staging": "1MiB", "pinned_budget": "1MiB")") {
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
  Watched f;
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
