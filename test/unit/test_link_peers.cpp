// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which peer has which entry of the table, and how many of something a peer may have in a second.
#include "catch.h"
#include "link/peers.h"
#include "test_world.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace adverb;
using namespace std::chrono_literals;
using link::Allowance;
using link::Peer;
using observe::kOthers;
using observe::kPeerEntries;
using observe::PeerEntry;
using observe::PeerNumber;
using observe::PeerRole;

namespace {

struct Table {
  // A peer that has a link until it is told to end.
  struct Linked {
    std::shared_ptr<Peer> peer;
    bool up = true;
  };
  Linked& link(uint8_t number, const std::string& address = "10.0.0.2") {
    link::wire::Id process{};
    process[0] = number;
    auto made = std::make_unique<Linked>();
    made->peer = peers->meet(PeerRole::initiator, address, process, false);
    linked.push_back(std::move(made));
    return *linked.back();
  }
  void end(Linked& one) {
    one.up = false;
    one.peer->change();
  }
  void collect() {
    for (const auto& one : linked)
      if (one->up)
        one->peer->has({1, 2, 3, 1});
  }
  std::optional<PeerEntry> entry(size_t slot) const {
    PeerEntry out;
    return read_peer(bench.world.peers.slots()[slot], out) ? std::optional(out) : std::nullopt;
  }
  // Where that one's is.
  std::optional<size_t> find(uint8_t number) const {
    for (size_t i = 0; i < kPeerEntries; ++i)
      if (const auto e = entry(i); e && e->process[0] == number)
        return i;
    return std::nullopt;
  }
  void write() { bench.service.pass(1s); }

  world_test::Bench bench;
  std::vector<std::unique_ptr<Linked>> linked;
  std::shared_ptr<link::Peers> peers = link::Peers::make(bench.world, [this] { collect(); });
};

} // namespace

TEST_CASE("what is known of a peer is written soon, once for all that was counted") {
  Table table;
  auto& one = table.link(7);
  one.peer->admit(observe::PeerLevel::host);
  CHECK_FALSE(table.entry(0));
  for (int i = 0; i < 5; ++i)
    one.peer->count(PeerNumber::requests);
  CHECK(table.bench.service.timers.size() == 1);
  table.write();
  const auto e = table.entry(0);
  REQUIRE(e);
  CHECK(std::string(e->address) == "10.0.0.2");
  CHECK(e->level == observe::PeerLevel::host);
  CHECK(e->processes == 1);
  CHECK((*e)[PeerNumber::links] == 1);
  CHECK((*e)[PeerNumber::channels] == 2);
  CHECK((*e)[PeerNumber::qps_bound] == 3);
  CHECK((*e)[PeerNumber::qps_proven] == 1);
  CHECK((*e)[PeerNumber::requests] == 5);
  CHECK(table.bench.service.timers.empty()); // nothing is done while nothing changes
  one.peer->count(PeerNumber::requests);
  table.write();
  CHECK((*table.entry(0))[PeerNumber::requests] == 6);
  CHECK_FALSE(table.entry(kOthers));
}

TEST_CASE("a process that links twice has one entry, those of two hosts or roles have their own") {
  Table table;
  table.link(7);
  table.link(7);
  table.link(7, "10.0.0.3");
  table.peers->meet(PeerRole::owner, "10.0.0.2", {7}, false);
  table.write();
  size_t entries = 0;
  int64_t links = 0;
  for (size_t i = 0; i <= kOthers; ++i)
    if (const auto e = table.entry(i)) {
      ++entries;
      links += (*e)[PeerNumber::links];
    }
  CHECK(entries == 3);
  CHECK(links == 3);
}

TEST_CASE("the entry of who ended before all others is used again, and its numbers are kept") {
  Table table;
  for (uint8_t i = 0; i < kPeerEntries; ++i)
    table.link(i).peer->count(PeerNumber::requests);
  table.write();
  for (const uint8_t ends : {9, 5, 30}) {
    table.end(*table.linked[ends]);
    table.write();
  }
  CHECK((*table.entry(*table.find(9)))[PeerNumber::links] == 0); // shown as long as there is room
  const auto where = table.find(9);
  table.link(100);
  table.write();
  CHECK(table.find(100) == where);
  CHECK_FALSE(table.find(9));
  CHECK(table.find(5));
  CHECK(table.find(30));
  const auto others = table.entry(kOthers);
  REQUIRE(others);
  CHECK(std::string(others->address) == "others");
  CHECK(others->processes == 1);
  CHECK((*others)[PeerNumber::requests] == 1);
  CHECK((*others)[PeerNumber::links] == 0);
  table.link(9); // it is back, and begins anew
  table.write();
  CHECK(table.find(9));
  CHECK_FALSE(table.find(5));
  CHECK((*table.entry(*table.find(9)))[PeerNumber::requests] == 0);
}

TEST_CASE("who finds no entry is summed up with the others, and gets one when there is one") {
  Table table;
  for (uint8_t i = 0; i < kPeerEntries + 3; ++i)
    table.link(i).peer->count(PeerNumber::requests);
  table.write();
  auto others = table.entry(kOthers);
  REQUIRE(others);
  CHECK(others->processes == 3);
  CHECK((*others)[PeerNumber::links] == 3);
  CHECK((*others)[PeerNumber::requests] == 3);
  for (uint8_t i = 0; i < 3; ++i)
    table.end(*table.linked[i]);
  table.write();
  table.linked.back()->peer->count(PeerNumber::requests);
  table.write();
  CHECK(table.find(kPeerEntries + 2));
  others = table.entry(kOthers);
  CHECK(others->processes == 3); // the three that have ended
  CHECK((*others)[PeerNumber::links] == 0);
  CHECK((*others)[PeerNumber::requests] == 3);
}

TEST_CASE("strangers that are refused one after another displace nobody who has a link") {
  Table table;
  for (uint8_t i = 0; i < 10; ++i)
    table.link(i);
  table.write();
  for (uint32_t i = 0; i < 1000; ++i) {
    link::wire::Id process{0xFF};
    memcpy(&process[4], &i, sizeof i);
    table.peers->meet(PeerRole::initiator, "10.9.9.9", process, false)
        ->count(PeerNumber::hellos_refused);
    if (i % 100 == 99)
      table.write();
  }
  for (uint8_t i = 0; i < 10; ++i)
    CHECK(table.find(i));
  int64_t refused = 0;
  for (size_t i = 0; i <= kOthers; ++i)
    refused += (*table.entry(i))[PeerNumber::hellos_refused];
  CHECK(refused == 1000);
}

TEST_CASE("so many a second, and what is beyond waits for the second that has room") {
  Allowance allowance(10);
  auto now = std::chrono::nanoseconds(5s);
  for (int i = 0; i < 10; ++i)
    CHECK(allowance.wait(now, true) == 0s);
  CHECK(allowance.wait(now + 100ms, false) == 900ms); // not counted, and waits as well
  for (int i = 0; i < 10; ++i)
    CHECK(allowance.wait(now + 500ms, true) == 500ms);
  CHECK(allowance.wait(now + 500ms, true) == 1500ms);
  now += 2s; // 21 were counted, and two seconds have passed
  CHECK(allowance.wait(now, false) == 0s);
  for (int i = 0; i < 9; ++i)
    CHECK(allowance.wait(now, true) == 0s);
  CHECK(allowance.wait(now, true) == 1s);
  CHECK(allowance.wait(now + 1h, true) == 0s);
}
