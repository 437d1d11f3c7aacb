// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Regions and their backends, without a device: with the backends there are, and with one more that
// only this test has (toy_backend.cpp).
#include "region_fixture.h"

#include <array>

using namespace adverb::registration;
using namespace region_test;

TEST_CASE("every row of the table has a backend in every context, in its own words") {
  Fixture f;
  REQUIRE(makers.size() == policy::backends.size());
  for (const auto& row : policy::backends) {
    INFO(row.name);
    CHECK(&f.regions.backend(row).traits() == &row);
    ibv_mr* mr = f.add(row.name);
    CHECK(f.regions.is_virtual(mr->lkey) == row.unpins);
    CHECK((f.regions.key_token(mr->lkey) != nullptr) == row.unpins);
    CHECK((f.grant(mr->lkey, f.memory.address(), 8, IBV_ACCESS_REMOTE_ATOMIC) != nullptr) ==
          row.lends);
    const auto ended = f.regions.remove(mr);
    CHECK(ended.known);
    CHECK(ended.rc == 0);
    CHECK((ended.key != nullptr) == row.unpins);
  }
}

TEST_CASE("a pinned region is the provider's own: its elements pass as they are") {
  Fixture f;
  ibv_mr* mr = f.add("pinned", write_right);
  CHECK(f.device.find(mr->lkey) != nullptr);
  ibv_sge sge = f.element(mr, 5, 100);
  const ibv_sge before = sge;
  Hold hold;
  CHECK(f.localize(sge, hold) == 0);
  CHECK(same(sge, before));
  CHECK_FALSE(hold);
  Span span;
  CHECK(f.regions.local(&f.device.pd, sge, write_right, span) == 0);
  CHECK(span.data == f.memory.memory + 5);
  CHECK(f.regions.local(&f.device.other_pd, sge, 0, span) == ENOENT);
  std::byte* data = nullptr;
  CHECK(f.regions.remote(&f.device.pd, mr->rkey, f.memory.address(), 1, 0, data) == ENOENT);
  CHECK_FALSE(f.regions.any_remote());
}

TEST_CASE("each verb reaches the provider as the program called it") {
  Fixture f;
  for (const auto verb :
       {Wanted::Verb::reg_mr, Wanted::Verb::reg_mr_iova, Wanted::Verb::reg_mr_iova2}) {
    Wanted wanted = f.wanted(write_right);
    wanted.verb = verb;
    if (verb != Wanted::Verb::reg_mr)
      wanted.iova = 0x7000;
    ibv_mr* mr = nullptr;
    REQUIRE_FALSE(f.regions.add(f.backend("pinned"), wanted, mr));
    const auto* made = f.device.find(mr->lkey);
    REQUIRE(made != nullptr);
    CHECK(made->iova == wanted.iova);
    CHECK(made->access == write_right);
    CHECK(f.regions.remove(mr).rc == 0);
  }
  f.device.refuse_regions = EPERM;
  ibv_mr* mr = nullptr;
  CHECK(f.regions.add(f.backend("pinned"), f.wanted(), mr).error == EPERM);
  CHECK(mr == nullptr);
}

TEST_CASE("an unpinned region registers nothing until it is used, and small elements never") {
  Fixture f;
  ibv_mr* mr = f.add("none");
  CHECK(f.device.registered == 0);
  f.memory.memory[10] = std::byte{42};
  ibv_sge sge = f.element(mr, 10, copy_below - 1);
  Hold hold;
  REQUIRE(f.localize(sge, hold) == 0);
  CHECK(f.device.registered == 1); // the slab
  REQUIRE(hold.block);
  CHECK(hold.window == nullptr);
  CHECK(sge.addr == reinterpret_cast<uintptr_t>(hold.block.data));
  CHECK(sge.lkey == hold.block.lkey);
  CHECK(hold.block.data[0] == std::byte{42});
  f.regions.release(f.staging, hold);
  CHECK_FALSE(hold);
  CHECK(f.device.registered == 1);
}

TEST_CASE(
    "a large element gets a window of its pages, clipped to the region, and keeps its address") {
  Fixture f;
  Wanted wanted = f.wanted(write_right);
  wanted.start = f.memory.memory + 100;
  wanted.length = 2 * page;
  wanted.iova = 0x5000;
  ibv_mr* mr = nullptr;
  REQUIRE_FALSE(f.regions.add(f.backend("none"), wanted, mr));
  ibv_sge sge{0x5000 + 50, copy_below, mr->lkey};
  Hold hold;
  REQUIRE(f.localize(sge, hold) == 0);
  REQUIRE(hold.window != nullptr);
  CHECK(sge.addr == 0x5000 + 50);
  const auto* made = f.device.find(sge.lkey);
  REQUIRE(made != nullptr);
  CHECK(made->mr.addr == f.memory.memory + 100);
  CHECK(made->mr.length == page - 100);
  CHECK(made->iova == 0x5000);
  CHECK(made->access == write_right);
  f.regions.release(f.staging, hold);
  CHECK(f.device.find(sge.lkey) != nullptr); // cached
  f.regions.remove(mr);
  CHECK(f.device.find(sge.lkey) == nullptr);
}

TEST_CASE("windows are shared while they are used and cached within the budget, oldest out first") {
  Fixture f; // two pages
  ibv_mr* mr = f.add("none");
  std::array<uint32_t, 4> keys{};
  const auto use = [&](size_t at) {
    ibv_sge sge = f.element(mr, at * page, page);
    Hold hold;
    REQUIRE(f.localize(sge, hold) == 0);
    keys[at] = sge.lkey;
    f.regions.release(f.staging, hold);
  };
  use(0);
  use(1);
  use(0); // now 1 is the older one
  CHECK(f.device.registered == 2);
  use(2);
  CHECK(f.device.registered == 3);
  CHECK(f.device.find(keys[0]) != nullptr);
  CHECK(f.device.find(keys[1]) == nullptr);
  CHECK(f.device.find(keys[2]) != nullptr);

  ibv_sge first = f.element(mr, 0, page);
  ibv_sge within = f.element(mr, 1000, 2000);
  Hold one;
  Hold two;
  REQUIRE(f.localize(first, one) == 0);
  REQUIRE(f.localize(within, two) == 0);
  CHECK(one.window == two.window);
  CHECK(first.lkey == within.lkey);
  f.regions.release(f.staging, one);
  use(3); // takes the place of 2: 0 is in use
  CHECK(f.device.find(within.lkey) != nullptr);
  f.regions.release(f.staging, two);
}

TEST_CASE("an element that was received reaches the program only while its region lives") {
  Fixture f;
  ibv_mr* mr = f.add("none");
  ibv_sge sge = f.element(mr, 0, 100);
  Hold hold;
  REQUIRE(f.localize(sge, hold, write_right, false) == 0);
  hold.block.data[99] = std::byte{7};
  CHECK(f.regions.deliver(&f.device.pd, hold, 100));
  CHECK(f.memory.memory[99] == std::byte{7});
  hold.block.data[99] = std::byte{8};
  CHECK(f.regions.remove(mr).rc == 0);
  ibv_mr* again = f.add("none"); // of the same memory: that is not the region it was posted for
  CHECK_FALSE(f.regions.deliver(&f.device.pd, hold, 100));
  CHECK(f.memory.memory[99] == std::byte{7});
  f.regions.release(f.staging, hold);
  f.regions.remove(again);
}

TEST_CASE("a region's windows end with it, and what still holds one gives it back later") {
  Fixture f;
  ibv_mr* mr = f.add("none");
  ibv_sge sge = f.element(mr, 0, page);
  ibv_sge other = f.element(mr, 0, page);
  Hold hold;
  Hold second;
  REQUIRE(f.localize(sge, hold) == 0);
  REQUIRE(f.localize(other, second) == 0);
  f.regions.remove(mr);
  CHECK(f.device.regions.empty());
  f.regions.release(f.staging, hold);
  f.regions.release(f.staging, second);
  CHECK(f.device.regions.empty());
}

TEST_CASE("a grant is a real key for whole pages until it is given back or the region ends") {
  Fixture f;
  ibv_mr* mr = f.add("none");
  const auto grant = f.grant(mr->rkey, f.memory.address() + page + 8, 8, IBV_ACCESS_REMOTE_ATOMIC);
  REQUIRE(grant);
  CHECK(grant->start == f.memory.address() + page);
  CHECK(grant->mr->length == page);
  REQUIRE(f.device.find(grant->mr->rkey) != nullptr);
  CHECK(f.device.find(grant->mr->rkey)->access ==
        (IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_LOCAL_WRITE));
  f.regions.revoke(grant);
  CHECK(f.device.regions.empty());
  f.regions.revoke(grant); // once more is no harm

  const auto kept = f.grant(mr->rkey, f.memory.address(), 8, IBV_ACCESS_REMOTE_ATOMIC);
  REQUIRE(kept);
  CHECK(f.grant(mr->rkey, f.memory.address() + 4 * page - 4, 8, 0) == nullptr);
  CHECK(f.grant(mr->rkey + 1000, f.memory.address(), 8, 0) == nullptr);
  f.regions.remove(mr);
  CHECK(kept->mr == nullptr);
  CHECK(f.device.regions.empty());
  f.regions.revoke(kept);
}

TEST_CASE("a key is not reused while a grant of it is out or somebody keeps its token") {
  Fixture f;
  ibv_mr* mr = f.add("none");
  const uint32_t key = mr->rkey;
  auto grant = f.grant(key, f.memory.address(), 8, IBV_ACCESS_REMOTE_ATOMIC);
  auto token = f.regions.key_token(key);
  REQUIRE(token);
  CHECK(token->value() == key);
  {
    const auto ended = f.regions.remove(mr);
    REQUIRE(ended.key);
    CHECK(ended.key->value() == key);
  }
  CHECK(f.regions.key_token(key) == nullptr);
  CHECK(f.regions.is_reserved(key));
  CHECK_FALSE(f.regions.is_virtual(key));
  const auto next_key = [&] {
    ibv_mr* next = f.add("none");
    const uint32_t value = next->rkey;
    f.regions.remove(next);
    return value;
  };
  const uint32_t another = next_key();
  CHECK(another != key);
  token.reset();
  CHECK(next_key() == another);
  grant.reset();
  CHECK(next_key() == another); // the oldest of the free ones
  CHECK(next_key() == key);
}

TEST_CASE("a token may outlive the context it is of") {
  std::shared_ptr<Key> token;
  {
    Fixture f;
    ibv_mr* mr = f.add("none");
    token = f.regions.key_token(mr->rkey);
    f.regions.remove(mr);
  }
  REQUIRE(token);
  token.reset();
}

TEST_CASE(
    "a backend comes in by its row and its file: the policy knows its word and what it does") {
  const auto rules = policy_of(R"("rules": [{"register": "toy", "match": {"min_size": "1KiB"}}])");
  const auto& row = rules->region({"d", page, 0});
  CHECK(row.name == "toy");
  CHECK(rules->may_unpin("d"));
  CHECK_FALSE(rules->idle());
  CHECK(rules->region({"d", 1, 0}).name == policy::stock_backend().name);
  const auto typo =
      policy::load_text(R"({"version": 1, "rules": [{"register": "tpy"}]})", "test", "/p");
  REQUIRE(typo.errors.size() == 1);
  CHECK(typo.errors[0].text().find(
            R"("pinned", "none", "elastic", "odp", "np", "auto" or "toy")") != std::string::npos);
  CHECK(typo.errors[0].text().find(R"(did you mean "toy")") != std::string::npos);
}

TEST_CASE("a backend with a rule of its own serves elements and peers, and its region ends") {
  Fixture f;
  Backend& toy = f.backend("toy");
  Wanted large = f.wanted();
  large.length = 1 << 20;
  CHECK(toy.fits(large).error == EOPNOTSUPP);
  CHECK(toy.fits(large).why == "it is too large to be played with");
  CHECK_FALSE(toy.fits(f.wanted()));

  ibv_mr* mr = f.add("toy");
  CHECK(f.device.registered == 0);
  CHECK(f.regions.any_remote());
  ibv_sge small = f.element(mr, 1, 1);
  ibv_sge other = f.element(mr, 3 * page, page);
  Hold hold;
  REQUIRE(f.localize(small, hold) == 0);
  REQUIRE(f.localize(other, hold) == 0);
  CHECK_FALSE(hold);
  CHECK(small.lkey == other.lkey);
  CHECK(small.lkey != mr->lkey);
  REQUIRE(f.device.find(small.lkey) != nullptr);
  CHECK(f.device.find(small.lkey)->mr.length == f.memory.bytes);
  f.regions.release(f.staging, hold);
  CHECK(f.device.find(small.lkey) != nullptr); // stays

  std::byte* data = nullptr;
  CHECK(f.regions.remote(&f.device.pd, mr->rkey, f.memory.address() + 3, 8, IBV_ACCESS_REMOTE_READ,
                         data) == 0);
  CHECK(data == f.memory.memory + 3);
  CHECK(f.grant(mr->rkey, f.memory.address(), 8, IBV_ACCESS_REMOTE_ATOMIC) == nullptr);

  f.chosen = "toy";
  const auto changed = f.change(mr, {.what = IBV_REREG_MR_CHANGE_ACCESS, .access = write_right});
  CHECK(changed.rc == 0);
  CHECK(f.device.regions.empty());
  CHECK_FALSE(f.regions.any_remote());
  CHECK(f.regions.remove(mr).rc == 0);
}
