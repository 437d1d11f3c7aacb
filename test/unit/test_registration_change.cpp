// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Regions that ibv_rereg_mr changes: what they answer for afterwards, and what has been lent of
// them.
#include "region_fixture.h"

#include <cerrno>

using namespace adverb::registration;
using namespace region_test;

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
