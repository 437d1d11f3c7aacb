// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a peer may ask for ends with its queue pairs: every name that it gives is looked up among
// those that are bound to them over its own channel. The peers here are well-formed liars.
#include "catch.h"
#include "fake_channel.h"
#include "fake_provider.h"
#include "test_world.h"
#include "transfer/protocol.h"

#include <array>
#include <cstring>
#include <vector>

using namespace adverb;
using namespace adverb::test;
using observe::Counter;
using transfer::Kind;
using transfer::ReplyHeader;
using transfer::RequestHeader;
using transfer::Status;

namespace {

constexpr uint64_t mine = 1; // queue pairs of this process, to each of which one peer's is bound
constexpr uint64_t others = 2;
constexpr uint64_t peers = 77; // that of the first peer, and that of the second
constexpr uint64_t liars = 78;

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
  void lent_over_lost_link(transfer::Grants grants) override { orphans.merge(grants); }
  transfer::Grants orphans;
  const ibv_pd* of_pd = nullptr;
  registration::Regions* of = nullptr;
};

struct Owner {
  Owner() {
    for (auto* channel : {&honest, &liar}) {
      *channel =
          std::make_shared<FakeChannel>(progress, link::Channel::Role::server, FakeChannel::Size{});
      (*channel)->open(*protocol);
    }
    for (uint64_t i = 0; i < all.size(); ++i) {
      all[i].of = &regions;
      all[i].of_pd = &device.pd;
      targets.add(i + 1, &all[i]);
    }
    honest->bind(mine, peers, true);
    liar->bind(others, liars, true);
    const unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                            IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    CHECK_FALSE(regions.add(regions.backend(*policy::find_backend("none")),
                            {&device.pd, memory.data(), memory.size(), address(), access,
                             registration::Wanted::Verb::reg_mr},
                            mr));
    REQUIRE(mr != nullptr);
  }
  ~Owner() {
    honest->end();
    liar->end();
    for (auto& target : all)
      target.revoke(target.orphans);
    for (uint64_t i = 0; i < all.size(); ++i)
      targets.remove(i + 1);
    bench.service.run_tasks();
    regions.close();
  }

  uintptr_t address() const { return reinterpret_cast<uintptr_t>(memory.data()); }
  RequestHeader request(Kind kind, uint64_t target, uint64_t source, uint32_t run = 1) const {
    RequestHeader h{};
    h.kind = static_cast<uint8_t>(kind);
    h.flags = transfer::last_part;
    h.run = run;
    h.target = target;
    h.source = source;
    h.request = 5;
    h.key = mr->rkey;
    if (kind == Kind::release || kind == Kind::query)
      return h;
    h.address = h.total_address = address();
    h.total = 8;
    h.length = kind == Kind::grant ? 0 : 8;
    return h;
  }
  // Asks and has everything done that comes of it; what is answered.
  ReplyHeader ask(FakeChannel& channel, const RequestHeader& h) {
    std::vector<std::byte> message(
        sizeof h + (h.kind == static_cast<uint8_t>(Kind::write) ? h.length : 0), std::byte{9});
    memcpy(message.data(), &h, sizeof h);
    channel.receive(message);
    while (!bench.service.jobs.empty())
      bench.service.next_job()->run();
    bench.service.run_tasks();
    const auto answer = channel.take();
    const auto reply = only_reply(answer);
    REQUIRE(reply);
    REQUIRE_FALSE(channel.down());
    return reply->header;
  }
  Status status(FakeChannel& channel, const RequestHeader& h) {
    return static_cast<Status>(ask(channel, h).status);
  }
  transfer::Binding& of(uint64_t target, const FakeChannel& channel) {
    return all[target - 1].binding(channel);
  }
  uint64_t refused_as_unbound() const {
    return bench.world.counters.value(Counter::requests_unbound);
  }
  size_t lent() const { return device.regions.size(); }

  FakeProvider device;
  world_test::Bench bench{&FakeProvider::table()};
  FakeProgress progress;
  transfer::Targets targets;
  registration::Regions regions{bench.world, &device.context};
  std::array<FakeTarget, 2> all;
  std::shared_ptr<link::Protocol> protocol = transfer::make_protocol(
      bench.world, std::make_shared<transfer::Handlers>(transfer::handler_list()), targets);
  std::shared_ptr<FakeChannel> honest, liar;
  std::vector<std::byte> memory = std::vector<std::byte>(4096);
  ibv_mr* mr = nullptr;
};

} // namespace

TEST_CASE("a peer is served only by the queue pair that its own is bound to") {
  const Kind kind = GENERATE(Kind::write, Kind::read, Kind::grant, Kind::query, Kind::release);
  Owner owner;
  const auto before = owner.memory;
  const size_t lent = owner.lent();
  // Somebody else's, in its own name and in theirs; its own in theirs; and one that is not there.
  CHECK(owner.status(*owner.liar, owner.request(kind, mine, liars)) == Status::refused);
  CHECK(owner.status(*owner.liar, owner.request(kind, mine, peers)) == Status::refused);
  CHECK(owner.status(*owner.liar, owner.request(kind, others, peers)) == Status::refused);
  CHECK(owner.status(*owner.liar, owner.request(kind, 3, liars)) == Status::refused);
  CHECK(owner.refused_as_unbound() == 4);
  CHECK(owner.memory == before);
  CHECK(owner.lent() == lent);
  CHECK(owner.bench.world.counters.value(Counter::responder_naks) == 0);
  CHECK(owner.status(*owner.liar, owner.request(kind, others, liars)) == Status::ok);
  CHECK(owner.status(*owner.honest, owner.request(kind, mine, peers)) == Status::ok);
  CHECK(owner.refused_as_unbound() == 4);
}

TEST_CASE("who has not proven that the queue pair is its own may ask nothing") {
  const Kind kind = GENERATE(Kind::write, Kind::read, Kind::grant, Kind::query, Kind::release);
  Owner owner;
  owner.liar->bind(mine, liars, false);
  const auto before = owner.memory;
  const size_t lent = owner.lent();
  CHECK(owner.status(*owner.liar, owner.request(kind, mine, liars)) == Status::refused);
  CHECK(owner.refused_as_unbound() == 1);
  CHECK(owner.memory == before);
  CHECK(owner.lent() == lent);
  owner.honest->prove(mine, liars); // over another channel
  owner.liar->prove(mine, peers);   // in the name of another
  CHECK(owner.status(*owner.liar, owner.request(kind, mine, liars)) == Status::refused);
  owner.liar->prove(mine, liars);
  CHECK(owner.status(*owner.liar, owner.request(kind, mine, liars)) == Status::ok);
  // What has ended is to be proven anew.
  owner.liar->unbind(mine, liars);
  owner.liar->bind(mine, liars, false);
  CHECK(owner.status(*owner.liar, owner.request(kind, mine, liars)) == Status::refused);
}

TEST_CASE("no key is learnt, and none is made known, by a queue pair that is not bound") {
  Owner owner;
  auto h = owner.request(Kind::query, mine, liars);
  for (h.key = 0; h.key < 1000; ++h.key)
    CHECK(owner.status(*owner.liar, h) == Status::refused);
  CHECK(owner.refused_as_unbound() == 1000);
}

TEST_CASE("a failure halts the run of who failed, and of nobody else on the same queue pair") {
  Owner owner;
  owner.liar->bind(mine, liars, true);
  auto wrong = owner.request(Kind::write, mine, liars, UINT32_MAX);
  wrong.total_address = wrong.address = owner.address() + owner.memory.size();
  CHECK(owner.status(*owner.liar, wrong) == Status::refused);
  CHECK(owner.status(*owner.liar, owner.request(Kind::write, mine, liars)) == Status::halted);
  CHECK(owner.status(*owner.honest, owner.request(Kind::write, mine, peers)) == Status::ok);
}

TEST_CASE("what is bound once more, and needs no proof by then, is served") {
  Owner owner;
  owner.liar->bind(mine, liars, false);
  const auto request = owner.request(Kind::write, mine, liars);
  CHECK(owner.status(*owner.liar, request) == Status::refused);
  owner.liar->bind(mine, liars, true); // over another connection, whose other end is vouched for
  CHECK(owner.status(*owner.liar, request) == Status::ok);
  owner.liar->bind(mine, liars, false); // and nothing of that is taken back by a third
  CHECK(owner.status(*owner.liar, request) == Status::ok);
}

TEST_CASE("what is lent is given back by who borrowed it") {
  Owner owner;
  owner.liar->bind(mine, liars, true);
  const size_t before = owner.lent();
  const ReplyHeader grant = owner.ask(*owner.honest, owner.request(Kind::grant, mine, peers));
  REQUIRE(grant.status == static_cast<uint8_t>(Status::ok));
  CHECK(owner.lent() == before + 1);
  auto release = owner.request(Kind::release, mine, liars);
  release.address = grant.grant;
  owner.ask(*owner.liar, release);
  CHECK(owner.lent() == before + 1);
  release.source = peers;
  CHECK(owner.status(*owner.honest, release) == Status::ok);
  CHECK(owner.lent() == before);
}

TEST_CASE("one queue pair borrows so much, and others have theirs") {
  Owner owner;
  const size_t before = owner.lent();
  std::vector<uint64_t> grants;
  for (int i = 0; i < 16; ++i) {
    const ReplyHeader grant = owner.ask(*owner.liar, owner.request(Kind::grant, others, liars));
    CHECK(grant.status == static_cast<uint8_t>(Status::ok));
    grants.push_back(grant.grant);
  }
  CHECK(owner.status(*owner.liar, owner.request(Kind::grant, others, liars)) == Status::refused);
  CHECK(owner.lent() == before + 16);
  CHECK(owner.status(*owner.honest, owner.request(Kind::grant, mine, peers)) == Status::ok);
  auto release = owner.request(Kind::release, others, liars);
  release.address = grants.front();
  CHECK(owner.status(*owner.liar, release) == Status::ok);
  CHECK(owner.status(*owner.liar, owner.request(Kind::grant, others, liars, 2)) == Status::ok);
}

TEST_CASE("unbound, a queue pair asks for nothing more and has given everything back") {
  Owner owner;
  const size_t before = owner.lent();
  owner.ask(*owner.honest, owner.request(Kind::grant, mine, peers));
  owner.ask(*owner.honest, owner.request(Kind::grant, mine, peers));
  CHECK(owner.lent() == before + 2);
  owner.honest->unbind(mine, liars); // not its own
  owner.honest->unbind(others, peers);
  CHECK(owner.lent() == before + 2);
  owner.honest->unbind(mine, peers);
  CHECK(owner.lent() == before);
  // What it had sent before may come behind, which is nobody's lie.
  CHECK(owner.status(*owner.honest, owner.request(Kind::write, mine, peers)) == Status::refused);
  CHECK(owner.refused_as_unbound() == 0);
  CHECK(owner.memory.front() == std::byte{0});
}

TEST_CASE("a copy for a queue pair that is unbound meanwhile is not answered as done") {
  Owner owner;
  std::vector<std::byte> message(sizeof(RequestHeader) + 8);
  const auto h = owner.request(Kind::write, mine, peers);
  memcpy(message.data(), &h, sizeof h);
  owner.honest->receive(message);
  REQUIRE_FALSE(owner.bench.service.jobs.empty());
  owner.honest->unbind(mine, peers);
  owner.bench.service.next_job()->run();
  owner.bench.service.run_tasks();
  const auto answer = owner.honest->take();
  const auto reply = only_reply(answer);
  REQUIRE(reply);
  CHECK(reply->header.status == static_cast<uint8_t>(Status::refused));
}

TEST_CASE("bound anew in the name of another, a queue pair begins anew") {
  Owner owner;
  const size_t before = owner.lent();
  auto wrong = owner.request(Kind::read, mine, peers, 9);
  wrong.key += 1;
  owner.ask(*owner.honest, owner.request(Kind::grant, mine, peers));
  owner.honest->bind(mine, 79, true);
  CHECK(owner.lent() == before);
  CHECK(owner.status(*owner.honest, owner.request(Kind::read, mine, peers)) == Status::refused);
  CHECK(owner.refused_as_unbound() == 1);
  CHECK(owner.status(*owner.honest, owner.request(Kind::read, mine, 79)) == Status::ok);
}

TEST_CASE("what is lent outlives a lost channel, as its device may use it, and nothing else does") {
  Owner owner;
  const size_t before = owner.lent();
  auto wrong = owner.request(Kind::read, mine, peers, 9);
  wrong.total = 1 << 20;
  CHECK(owner.status(*owner.honest, wrong) == Status::refused);
  owner.ask(*owner.honest, owner.request(Kind::grant, mine, peers, 10));
  owner.honest->end();
  CHECK(owner.lent() == before + 1);
  CHECK(owner.all[0].orphans.size() == 1);
  CHECK(owner.of(mine, *owner.honest).halted_run == 0); // for one that comes to lie where it lay
  owner.liar->bind(mine, liars, true);
  CHECK(owner.status(*owner.liar, owner.request(Kind::read, mine, liars)) == Status::ok);
}

TEST_CASE("of channels' ended bindings so many are remembered") {
  Owner owner;
  for (uint64_t i = 0; i < 5000; ++i) {
    owner.honest->bind(100 + i, 200 + i, true);
    owner.honest->unbind(100 + i, 200 + i);
  }
  owner.ask(*owner.honest, owner.request(Kind::query, 100 + 4999, 200 + 4999));
  CHECK(owner.refused_as_unbound() == 0);
  owner.ask(*owner.honest, owner.request(Kind::query, 100, 200));
  CHECK(owner.refused_as_unbound() == 1);
}
