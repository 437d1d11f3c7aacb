// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Regions where something cannot be had, or is not to be: memory, keys, what a device or a backend
// would not take.
#include "allocations.h"
#include "region_fixture.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace adverb::registration;
using namespace region_test;
using adverb::test::allocations;
using adverb::test::refused;

TEST_CASE("what cannot be had in memory leaves nothing at the device") {
  Fixture f;
  // Has each allocation of `act` fail, the first, the second, and at last none. Where it fails the
  // device has no more regions than before, or `more`.
  const auto fail_each = [&f](size_t more, const auto& act) {
    int failed = 0;
    for (uint64_t nth = 1; nth < 100; ++nth) {
      const size_t there = f.device.regions.size();
      bool good = false;
      refused = allocations + nth;
      try {
        good = act();
      } catch (const std::bad_alloc&) {
      }
      const bool met = allocations.load() >= refused.load();
      refused = 0;
      if (!met) {
        CHECK(good);
        return failed;
      }
      REQUIRE_FALSE(good);
      CHECK(f.device.regions.size() <= there + more);
      ++failed;
    }
    return 0;
  };
  f.add("none"); // the first of all reserves a protection domain
  for (const auto* const name : {"pinned", "none"}) {
    INFO(name);
    const auto before = f.device.regions.size();
    const size_t keys = name == std::string("none") ? 1 : 0; // a virtual one may stay reserved
    Backend& backend = f.backend(name);
    const Wanted wanted = f.wanted();
    ibv_mr* mr = nullptr;
    CHECK(fail_each(keys, [&] { return !f.regions.add(backend, wanted, mr); }) > 0);
    REQUIRE(mr != nullptr);
    if (keys != 0) {
      Hold hold; // a window
      CHECK(fail_each(0, [&] {
              ibv_sge sge = f.element(mr, 0, copy_below);
              return f.localize(sge, hold) == 0;
            }) > 0);
      f.regions.release(f.staging, hold);
      std::shared_ptr<Grant> grant;
      CHECK(fail_each(0, [&] {
              return f.regions.grant(mr->lkey, f.memory.address(), 8, IBV_ACCESS_REMOTE_ATOMIC,
                                     grant) == 0;
            }) > 0);
    } else {
      CHECK(f.device.regions.size() == before + 1);
    }
    CHECK(f.regions.remove(mr).rc == 0);
  }
}

TEST_CASE("a region ends without asking for memory, whatever holds something of it") {
  Fixture f;
  std::vector<ibv_mr*> regions;
  std::vector<Hold> holds;
  std::vector<std::shared_ptr<Key>> tokens;
  for (size_t i = 0; i < 200; ++i) {
    regions.push_back(f.add("none"));
    tokens.push_back(f.regions.key_token(regions.back()->rkey));
    ibv_sge sge = f.element(regions.back(), 0, page);
    REQUIRE(f.localize(sge, holds.emplace_back()) == 0);
  }
  std::vector<Ended> ended(regions.size());
  const uint64_t before = allocations;
  for (size_t i = 0; i < regions.size(); ++i)
    ended[i] = f.regions.remove(regions[i]);
  for (Hold& hold : holds)
    f.regions.release(f.staging, hold);
  ended.clear();
  tokens.clear();
  const uint64_t after = allocations;
  CHECK(after == before);
  CHECK(f.device.regions.empty());
}

TEST_CASE("a region the provider does not deregister lives on") {
  Fixture f;
  ibv_mr* mr = f.add("pinned");
  f.device.refuse_dereg = EBUSY;
  const auto ended = f.regions.remove(mr);
  CHECK(ended.known);
  CHECK(ended.rc == EBUSY);
  Span span;
  CHECK(f.regions.local(&f.device.pd, f.element(mr, 0, 1), 0, span) == 0);
  f.device.refuse_dereg = 0;
  CHECK(f.regions.remove(mr).rc == 0);
  CHECK(f.device.regions.empty());
}

TEST_CASE("nobody's MR is left to the provider") {
  Fixture f;
  ibv_mr stranger{};
  CHECK_FALSE(f.regions.remove(&stranger).known);
  CHECK_FALSE(f.change(&stranger, {}).known);
}

TEST_CASE("what cannot be backed says why and holds nothing") {
  Fixture f;
  ibv_mr* mr = f.add("none");
  Hold hold;
  ibv_sge sge = f.element(mr, 0, page);
  for (const auto& [device, told] : {std::pair{EFAULT, EFAULT}, std::pair{EAGAIN, ENOMEM}}) {
    f.device.refuse_regions = device;
    CHECK(f.localize(sge, hold) == told);
    CHECK(sge.lkey == mr->lkey);
    CHECK_FALSE(hold);
  }
  f.device.refuse_regions = 0;
  REQUIRE(mprotect(f.memory.memory, page, PROT_NONE) == 0);
  ibv_sge small = f.element(mr, 0, 8);
  CHECK(f.localize(small, hold) == EFAULT);
  CHECK(small.lkey == mr->lkey);
  CHECK_FALSE(hold);
}

TEST_CASE("without a key there is no unpinned region, and people are told why") {
  Fixture f;
  f.device.refuse_windows = EOPNOTSUPP; // one-page regions are tried next
  f.device.refuse_regions = EMFILE;
  ibv_mr* mr = nullptr;
  const auto refusal = f.regions.add(f.backend("none"), f.wanted(), mr);
  CHECK(refusal.error == EMFILE);
  CHECK(refusal.why == "no virtual key can be reserved");
  CHECK(mr == nullptr);
  f.device.refuse_regions = 0;
  mr = f.add("none");
  const auto* reserved = f.device.find(mr->rkey);
  REQUIRE(reserved != nullptr);
  CHECK(reserved->access == 0);
}

TEST_CASE("an element that a device would refuse is left for the device to refuse") {
  Fixture f;
  ibv_mr* mr = f.add("none", IBV_ACCESS_REMOTE_READ);
  const ibv_sge wrong[] = {f.element(mr, 0, 4 * page + 1),
                           f.element(mr, 4 * page, 1),
                           {f.memory.address() - 1, 1, mr->lkey},
                           {f.memory.address(), 1, mr->lkey + 1000}};
  for (ibv_sge sge : wrong) {
    const ibv_sge before = sge;
    Hold hold;
    CHECK(f.localize(sge, hold) == 0);
    CHECK(same(sge, before));
    CHECK_FALSE(hold);
  }
  ibv_sge sge = f.element(mr, 0, 8);
  const ibv_sge before = sge;
  Hold hold;
  CHECK(f.localize(sge, hold, write_right, false) == 0); // it may only be read
  CHECK(f.regions.localize(&f.device.other_pd, f.staging, copy_below, 0, true, sge, hold) == 0);
  CHECK(same(sge, before));
  CHECK_FALSE(hold);
  CHECK(f.device.registered == 0);
}

TEST_CASE("a region fits or it does not, and people are told why") {
  Fixture f;
  CHECK_FALSE(f.backend("pinned").fits(f.wanted()));
  CHECK_FALSE(f.backend("none").fits(f.wanted()));
  REQUIRE(mprotect(f.memory.memory, page, PROT_READ) == 0);
  CHECK_FALSE(f.backend("none").fits(f.wanted(IBV_ACCESS_REMOTE_READ)));
  const auto refusal = f.backend("none").fits(f.wanted(write_right));
  CHECK(refusal.error == EFAULT); // as in stock
  CHECK_FALSE(refusal.why.empty());
}

TEST_CASE("only arguments that a device would take are a backend's business") {
  Fixture f;
  CHECK(is_plain(f.wanted()));
  CHECK(is_plain(f.wanted(0)));
  CHECK_FALSE(is_plain(f.wanted(IBV_ACCESS_REMOTE_WRITE)));
  CHECK_FALSE(is_plain(f.wanted(write_right | IBV_ACCESS_ON_DEMAND)));
  CHECK_FALSE(is_plain(f.wanted(write_right | IBV_ACCESS_ZERO_BASED)));
  Wanted wanted = f.wanted();
  wanted.length = 0;
  CHECK_FALSE(is_plain(wanted));
  wanted.length = SIZE_MAX;
  CHECK_FALSE(is_plain(wanted));
  wanted.start = reinterpret_cast<void*>(UINTPTR_MAX - 10); // the last page rounds up to 0
  wanted.length = 5;
  CHECK_FALSE(is_plain(wanted));
}

TEST_CASE("a post and a completion allocate nothing once block and window are there") {
  Fixture f;
  ibv_mr* mr = f.add("none");
  const auto rounds = [&] {
    Hold staged;
    Hold windowed;
    for (int i = 0; i < 100; ++i) {
      ibv_sge small = f.element(mr, 0, 64);
      ibv_sge large = f.element(mr, 0, page);
      Span span;
      bool good = f.localize(small, staged, write_right, false) == 0;
      good &= f.regions.deliver(&f.device.pd, staged, 64);
      good &= f.localize(large, windowed) == 0;
      good &= f.regions.local(&f.device.pd, f.element(mr, 0, 64), 0, span) == 0;
      f.regions.release(f.staging, windowed);
      f.regions.release(f.staging, staged);
      if (!good)
        return false;
    }
    return true;
  };
  CHECK(rounds());
  const uint64_t before = allocations;
  const bool good = rounds();
  const uint64_t after = allocations;
  CHECK(good);
  CHECK(after == before);
}
