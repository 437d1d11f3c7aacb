// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the two ends of links keep, each part for itself.
#include "link/met_paths.h"
#include "link/owner_parts.h"
#include "link/qp_holders.h"
#include "link/waiting_binds.h"

#include "catch.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

using namespace adverb::link;

namespace {

WaitingBinds::Bind bind_for(uint32_t qpn) {
  WaitingBinds::Bind bind;
  bind.bind.dqpn = qpn;
  bind.timer = 100 + qpn;
  return bind;
}

wire::Share share_of(uint8_t byte) {
  wire::Share share{};
  share.fill(byte);
  return share;
}

} // namespace

TEST_CASE("binds wait by their queue pair's number until they are removed") {
  WaitingBinds all;
  const uint64_t first = all.next();
  all.add(bind_for(7));
  const uint64_t other = all.next();
  all.add(bind_for(8));
  const uint64_t second = all.next();
  all.add(bind_for(7));
  CHECK(all.size() == 3);
  auto of_seven = all.of_qp(7);
  std::ranges::sort(of_seven);
  CHECK(of_seven == std::vector{first, second});
  CHECK(all.of_qp(9).empty());
  REQUIRE(all.find(other) != nullptr);
  CHECK(all.find(other)->timer == 108);
  const auto removed = all.remove(first);
  REQUIRE(removed);
  CHECK(removed->bind.dqpn == 7);
  CHECK(!all.remove(first));
  CHECK(all.find(first) == nullptr);
  CHECK(all.of_qp(7) == std::vector{second});
  CHECK(all.remove(second));
  CHECK(all.of_qp(7).empty());
  CHECK(all.size() == 1);
  CHECK(all.next() > second);
}

TEST_CASE("a queue pair's holder is the last to vouch while its link is there") {
  QpHolders holders;
  const auto exists = [](uint64_t) { return true; };
  CHECK(holders.voucher(1) == nullptr);
  auto link = std::make_shared<owning::Link>();
  const auto other = std::make_shared<owning::Link>();
  holders.vouch(1, other, exists);
  holders.vouch(1, link, exists);
  CHECK(holders.voucher(1) == link);
  link.reset();
  CHECK(holders.voucher(1) == nullptr);
}

TEST_CASE("what one identity has proven no other proves while the queue pair exists") {
  QpHolders holders;
  uint64_t ended = 0;
  const auto exists = [&ended](uint64_t handle) { return handle > ended; };
  CHECK(holders.prove(1, share_of(3), exists));
  CHECK(holders.prove(1, share_of(3), exists));
  CHECK(!holders.prove(1, share_of(4), exists));
  CHECK(holders.prove(2, share_of(4), exists));
  // Those that have ended are forgotten, and are the next one's; those that exist are not.
  ended = 1;
  for (uint64_t handle = 3; handle <= QpHolders::at_first + 1; ++handle)
    CHECK(holders.prove(handle, share_of(5), exists));
  CHECK(holders.size() == QpHolders::at_first);
  CHECK(!holders.prove(2, share_of(3), exists));
  CHECK(holders.prove(1, share_of(9), exists));
}

TEST_CASE("no more of ended queue pairs is kept than of those that exist, and as much again") {
  QpHolders holders;
  const auto link = std::make_shared<owning::Link>();
  uint64_t newest = 0;
  const auto exists = [&newest](uint64_t handle) { return handle + 10 > newest; };
  for (newest = 1; newest <= 20 * QpHolders::at_first; ++newest) {
    holders.vouch(newest, link, exists);
    CHECK(holders.prove(newest, share_of(1), exists));
    REQUIRE(holders.size() <= 2 * QpHolders::at_first + 2);
  }
}

TEST_CASE("paths that were met are known, to a bound") {
  MetPaths met;
  CHECK(!met.has("a"));
  met.add("a");
  CHECK(met.has("a"));
  for (size_t i = 1; i < MetPaths::paths_max; ++i)
    met.add(std::to_string(i));
  met.add("b");
  CHECK(!met.has("b"));
  CHECK(met.has("a"));
}
