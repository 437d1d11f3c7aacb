// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Regions and their backends, without a device: with the backends there are, and with one more that
// only this test has (toy_backend.cpp).
#include "region_fixture.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <sys/mman.h>

using namespace adverb::registration;
using namespace region_test;

// Every allocation of this program, so that a test can see that there is none.
namespace {
std::atomic<uint64_t> allocations{0};
std::atomic<uint64_t> refused{0}; // this one, counted from 1, is not to be had
} // namespace
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (++allocations == refused)
    throw std::bad_alloc();
  if (void* memory = malloc(bytes == 0 ? 1 : bytes))
    return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t /*bytes*/) noexcept {
  free(memory);
}

namespace {

bool same(const ibv_sge& a, const ibv_sge& b) {
  return a.addr == b.addr && a.length == b.length && a.lkey == b.lkey;
}

} // namespace

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

TEST_CASE("a region the provider does not deregister lives on") {
  Fixture f;
  ibv_mr* mr = f.add("pinned");
  f.device.refuse_dereg = EBUSY;
  const auto refused = f.regions.remove(mr);
  CHECK(refused.known);
  CHECK(refused.rc == EBUSY);
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
  REQUIRE(f.localize(sge, hold, write_right, false) == 0);
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
  CHECK(f.regions.localize(&f.device.other_pd, f.staging, copy_below, 0, true, false, sge, hold) ==
        0);
  CHECK(same(sge, before));
  CHECK_FALSE(hold);
  CHECK(f.device.registered == 0);
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

TEST_CASE("a changed region answers for its new bytes, domain and rights under its old key") {
  Fixture f;
  ibv_mr* mr = f.add("none");
  const uint32_t key = mr->lkey;
  ibv_sge sge = f.element(mr, 0, page);
  Hold hold;
  REQUIRE(f.localize(sge, hold) == 0);
  const auto grant = f.grant(key, f.memory.address(), 8, IBV_ACCESS_REMOTE_ATOMIC);
  const Mapped other(2 * page);
  const auto ended = f.change(
      mr, {IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS,
           &f.device.other_pd, other.memory, other.bytes, IBV_ACCESS_REMOTE_READ});
  CHECK(ended.rc == 0);
  REQUIRE(ended.key);
  CHECK(ended.key->value() == key);
  CHECK(mr->lkey == key);
  CHECK(mr->addr == other.memory);
  CHECK(mr->pd == &f.device.other_pd);
  CHECK(f.device.find(sge.lkey) == nullptr); // the window is gone
  CHECK(grant->mr == nullptr);
  f.regions.release(f.staging, hold);
  std::byte* data = nullptr;
  const auto remote = [&](const ibv_pd& pd, uint64_t address, uint64_t length, unsigned right) {
    return f.regions.remote(&pd, key, address, length, right, data);
  };
  CHECK(remote(f.device.other_pd, other.address() + 8, page, IBV_ACCESS_REMOTE_READ) == 0);
  CHECK(data == other.memory + 8);
  CHECK(remote(f.device.pd, other.address(), 1, IBV_ACCESS_REMOTE_READ) == ENOENT);
  CHECK(remote(f.device.other_pd, other.address(), 2 * page + 1, IBV_ACCESS_REMOTE_READ) == ERANGE);
  CHECK(remote(f.device.other_pd, other.address(), 1, IBV_ACCESS_REMOTE_WRITE) == EACCES);
}

TEST_CASE("a grant outlives a change that still allows what was lent") {
  Fixture f;
  ibv_mr* mr = f.add("none", all_rights | IBV_ACCESS_REMOTE_ATOMIC);
  const auto grant = f.grant(mr->rkey, f.memory.address(), 8, IBV_ACCESS_REMOTE_ATOMIC);
  const auto rights = [](unsigned access) {
    return Change{.what = IBV_REREG_MR_CHANGE_ACCESS, .access = access};
  };
  CHECK(f.change(mr, rights(write_right | IBV_ACCESS_REMOTE_ATOMIC)).rc == 0);
  CHECK(grant->mr != nullptr);
  SECTION("until another does not") {
    CHECK(f.change(mr, rights(all_rights)).rc == 0);
    CHECK(grant->mr == nullptr);
  }
  SECTION("with another backend, too, until the region ends") {
    f.chosen = "pinned";
    CHECK(f.change(mr, rights(write_right | IBV_ACCESS_REMOTE_ATOMIC)).rc == 0);
    CHECK(f.device.find(mr->rkey) != nullptr);
    CHECK(grant->mr != nullptr);
    f.regions.remove(mr);
    CHECK(grant->mr == nullptr);
    CHECK(f.device.regions.empty());
  }
  SECTION("until it is given back") {
    f.regions.revoke(grant);
    CHECK(f.device.regions.empty());
  }
}

TEST_CASE("a change that makes no sense changes nothing") {
  Fixture f;
  ibv_mr* mr = f.add("none");
  constexpr int access = IBV_REREG_MR_CHANGE_ACCESS;
  constexpr int translation = IBV_REREG_MR_CHANGE_TRANSLATION;
  const Change senseless[] = {
      {},
      {.what = 1 << 10},
      {.what = access, .access = IBV_ACCESS_REMOTE_WRITE}, // without LOCAL_WRITE
      {.what = access, .access = IBV_ACCESS_MW_BIND},
      {.what = translation},
      {.what = IBV_REREG_MR_CHANGE_PD},
  };
  for (const Change& change : senseless) {
    errno = 0;
    const auto ended = f.change(mr, change);
    CHECK(ended.known);
    CHECK(ended.rc == IBV_REREG_MR_ERR_INPUT);
    CHECK(errno == EINVAL);
  }
  auto* hole =
      static_cast<std::byte*>(mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  munmap(hole, page);
  errno = 0;
  CHECK(f.change(mr, {.what = translation, .start = hole, .length = page}).rc ==
        IBV_REREG_MR_ERR_CMD);
  CHECK(errno == EFAULT);
  Span span;
  CHECK(f.regions.local(&f.device.pd, f.element(mr, 0, 4 * page), write_right, span) == 0);
}

TEST_CASE("a pinned region that has another key after a change is not found under the old one") {
  Fixture f;
  ibv_mr* mr = f.add("pinned", 0);
  const ibv_sge before = f.element(mr, 0, 8);
  const auto ended = f.change(mr, {.what = IBV_REREG_MR_CHANGE_ACCESS, .access = write_right});
  CHECK(ended.known);
  CHECK(ended.rc == 0);
  CHECK(ended.key == nullptr);
  REQUIRE(mr->lkey != before.lkey);
  Span span;
  CHECK(f.regions.local(&f.device.pd, before, 0, span) == ENOENT);
  CHECK(f.regions.local(&f.device.pd, f.element(mr, 0, 8), write_right, span) == 0);
  CHECK(f.regions.remove(mr).rc == 0);
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
  CHECK(typo.errors[0].text().find(R"("pinned", "none" or "toy")") != std::string::npos);
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
