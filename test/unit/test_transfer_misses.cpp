// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A peer that asks for keys that do not exist finds out so many in a second, and delays nobody
// else.
#include "catch.h"
#include "fake_channel.h"
#include "fake_provider.h"
#include "test_world.h"
#include "transfer/protocol.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

using namespace adverb;
using namespace adverb::test;
using namespace std::chrono_literals;
using link::Peer;
using observe::Counter;
using observe::PeerNumber;
using transfer::Kind;
using transfer::RequestHeader;
using transfer::Status;

namespace {

constexpr uint64_t peers = 77;

struct FakeTarget final : transfer::Target {
  bool allows(transfer::Right) const override { return true; }
  bool leaving() const override { return false; }
  const ibv_pd* pd() const override { return of_pd; }
  registration::Regions& regions() const override { return *of; }
  bool settle_receives(const RequestHeader&) override { return true; }
  void expect_immediate(uint64_t, uint32_t) override {}
  transfer::Status take_ahead(const transfer::RequestHeader&, std::span<const std::byte>) override {
    return transfer::Status::refused;
  }
  void lent_over_lost_link(transfer::Grants) override {}
  const ibv_pd* of_pd = nullptr;
  registration::Regions* of = nullptr;
};

struct Owner {
  Owner() {
    for (size_t i = 0; i < channels.size(); ++i) {
      channels[i] =
          std::make_shared<FakeChannel>(progress, link::Channel::Role::server, FakeChannel::Size{});
      // The first two are of one process.
      channels[i]->set_peer(known->meet(observe::PeerRole::initiator, "10.0.0.2",
                                        {static_cast<uint8_t>(i < 2 ? 1 : 2)}, false));
      channels[i]->open(*protocol);
      all[i].of = &regions;
      all[i].of_pd = &device.pd;
      targets.add(i + 1, &all[i]);
      channels[i]->bind(i + 1, peers, true);
    }
    for (const char* backend : {"none", "pinned"})
      CHECK_FALSE(regions.add(
          regions.backend(*policy::find_backend(backend)),
          {&device.pd, memory.data(), memory.size(), reinterpret_cast<uintptr_t>(memory.data()),
           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
           registration::Wanted::Verb::reg_mr},
          *std::ranges::find(mrs, nullptr)));
  }
  ~Owner() {
    bench.service.pass(1h);
    for (auto& channel : channels)
      channel->end();
    for (uint64_t i = 0; i < all.size(); ++i)
      targets.remove(i + 1);
    bench.service.run_tasks();
    regions.close();
  }

  void ask(size_t by, uint32_t key, Kind kind = Kind::query) {
    RequestHeader h{};
    h.kind = static_cast<uint8_t>(kind);
    h.run = 1;
    h.target = by + 1;
    h.source = peers;
    h.request = 5;
    h.key = key;
    if (kind != Kind::query) {
      h.total = h.length = 8;
      h.flags = transfer::last_part;
    }
    std::vector<std::byte> message(sizeof h);
    memcpy(message.data(), &h, sizeof h);
    channels[by]->receive(message);
    bench.service.run_tasks();
  }
  bool answered(size_t by, Status status) {
    const auto message = channels[by]->take();
    const auto reply = message.empty() ? std::nullopt : only_reply(message);
    return reply && reply->header.status == static_cast<uint8_t>(status);
  }
  // All that it may have in this second.
  void miss_all(size_t by) {
    for (uint32_t i = 0; i < Peer::misses_a_second; ++i) {
      ask(by, nobodys + i);
      REQUIRE(answered(by, Status::not_virtual));
    }
  }
  static constexpr uint32_t nobodys = 0x70000000;

  FakeProvider device;
  world_test::Bench bench{&FakeProvider::table()};
  std::shared_ptr<link::Peers> known = link::Peers::make(bench.world, [] {});
  FakeProgress progress;
  transfer::Targets targets;
  registration::Regions regions{bench.world, &device.context};
  std::array<FakeTarget, 3> all;
  std::shared_ptr<link::Protocol> protocol = transfer::make_protocol(
      bench.world, std::make_shared<transfer::Handlers>(transfer::handler_list()), targets);
  std::array<std::shared_ptr<FakeChannel>, 3> channels;
  std::vector<std::byte> memory = std::vector<std::byte>(4096);
  std::array<ibv_mr*, 2> mrs{}; // unpinned, pinned
};

} // namespace

TEST_CASE("who has missed too often in a second is answered in the next, others at once") {
  Owner owner;
  owner.miss_all(0);
  CHECK(owner.bench.world.counters.value(Counter::key_misses) == Peer::misses_a_second);
  CHECK(owner.bench.lines.said.empty());
  // Whatever it asks, and over whichever of its channels.
  owner.ask(0, Owner::nobodys);
  owner.ask(1, owner.mrs[0]->rkey);
  owner.ask(2, Owner::nobodys);
  owner.ask(2, owner.mrs[0]->rkey);
  CHECK(owner.answered(2, Status::not_virtual));
  CHECK(owner.answered(2, Status::ok));
  CHECK(owner.channels[0]->sent() == 0);
  CHECK(owner.channels[1]->sent() == 0);
  owner.bench.service.pass(999ms);
  CHECK(owner.channels[0]->sent() == 0);
  owner.bench.service.pass(1ms);
  CHECK(owner.answered(0, Status::not_virtual));
  CHECK(owner.answered(1, Status::ok));
  CHECK(std::ranges::count_if(owner.bench.lines.said, [](const std::string& line) {
          return line.find("10.0.0.2 asks for more than 1000 keys") != line.npos;
        }) == 1);
}

TEST_CASE(
    "a request of a peer that has missed too often is served at once unless its key is none") {
  Owner owner;
  owner.miss_all(0);
  owner.ask(0, Owner::nobodys, Kind::read);
  CHECK(owner.channels[0]->sent() == 0);
  owner.bench.service.pass(1s);
  CHECK(owner.answered(0, Status::not_virtual));
}

TEST_CASE("keys that exist are no misses, however often they are asked") {
  Owner owner;
  for (uint32_t i = 0; i < 3 * Peer::misses_a_second; ++i) {
    const bool pinned = i % 2 != 0;
    owner.ask(0, owner.mrs[pinned ? 1 : 0]->rkey);
    REQUIRE(owner.answered(0, pinned ? Status::not_virtual : Status::ok));
  }
  CHECK(owner.bench.world.counters.value(Counter::key_misses) == 0);
}

TEST_CASE("what a peer asked, missed and waited for is told of it") {
  Owner owner;
  owner.miss_all(0);
  owner.ask(0, Owner::nobodys);
  owner.ask(2, Owner::nobodys);
  owner.bench.service.pass(1s);
  std::array<observe::PeerEntry, 2> entries;
  for (size_t i = 0; i < entries.size(); ++i)
    REQUIRE(read_peer(owner.bench.world.peers.slots()[i], entries[i]));
  if (entries[0].process[0] != 1)
    std::swap(entries[0], entries[1]);
  CHECK(entries[0][PeerNumber::key_queries] == Peer::misses_a_second + 1);
  CHECK(entries[0][PeerNumber::key_misses] == Peer::misses_a_second + 1);
  CHECK(entries[0][PeerNumber::bound_key_misses] == 1);
  CHECK(entries[1][PeerNumber::key_misses] == 1);
  CHECK(entries[1][PeerNumber::bound_key_misses] == 0);
}
