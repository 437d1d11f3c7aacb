// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What peers may lease of a process, who makes room for whom, and what becomes of who gives nothing
// back.
#include "fake_channel.h"
#include "region_fixture.h"
#include "registration/recalls.h"
#include "transfer/lessor.h"
#include "transfer/protocol.h"
#include "transfer/responder.h"
#include "transfer/target.h"

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

using namespace adverb;
using namespace std::chrono_literals;
using adverb::test::FakeChannel;
using adverb::test::FakeProgress;
using registration::Grant;
using registration::Recalls;
using transfer::Status;

namespace {

constexpr uint64_t part = 64 << 10; // of what is leased at a time
constexpr size_t parts = 8;         // that the budget has room for

struct Owner : region_test::Fixture {
  Owner() : Fixture(R"("staging": "1MiB", "pinned_budget": "1MiB")") {
    bench.world.parts.recalls.put(recalls);
    madvise(table.memory, table.bytes, MADV_NOHUGEPAGE);
    memset(table.memory, 1, table.bytes);
    REQUIRE_FALSE(regions.add(backend("elastic"),
                              {&device.pd, table.memory, table.bytes, table.address(),
                               region_test::all_rights, registration::Wanted::Verb::reg_mr},
                              mr));
    key = mr->rkey;
  }
  uint64_t at(size_t i) const { return ((table.address() + part - 1) & ~(part - 1)) + i * part; }

  std::shared_ptr<Recalls> recalls = std::make_shared<Recalls>(Recalls::Hooks{
      [this] { ++wakes; },
      [this] {
        if (on_back)
          on_back();
      },
      [](const std::function<bool()>& done, std::chrono::milliseconds) { return done(); }});
  int wakes = 0;
  std::function<void()> on_back;
  region_test::Mapped table{64 * part};
  ibv_mr* mr = nullptr;
  uint32_t key = 0;
};

struct Peer {
  explicit Peer(Owner& o)
      : owner(o), channel(std::make_shared<FakeChannel>(
                      progress, link::Channel::Role::server,
                      FakeChannel::Size{.message_max = 4096, .version = transfer::version_leases})),
        told(std::make_shared<transfer::ToldKeys>(o.bench.world, ends, channel)),
        lessor(std::make_shared<transfer::Lessor>(o.bench.world, channel, told)) {}
  ~Peer() {
    {
      const std::lock_guard hold(progress.lock());
      lessor->close();
      told->close();
    }
    owner.bench.service.pass(transfer::Lessor::outlived);
  }

  // As the handler of `lease` does.
  Status asks(size_t i) {
    const std::lock_guard hold(progress.lock());
    const Status no = lessor->may_give(owner.key, owner.at(i), 8, part);
    if (no != Status::ok)
      return no;
    std::shared_ptr<Grant> lease;
    if (owner.regions.lease(owner.key, owner.at(i), 8, lease) != 0)
      return Status::fault;
    const uint32_t number = lessor->give(std::move(lease));
    if (number == 0)
      return Status::fault;
    numbers.push_back(number);
    return Status::ok;
  }
  void yields(uint32_t number) {
    const std::lock_guard hold(progress.lock());
    lessor->yielded(number);
  }
  // The numbers of the notice sent next, which is answered at once or never.
  std::vector<uint32_t> called_back(bool answers) {
    const auto message = channel->take();
    const auto parsed = transfer::parse_notice(message);
    if (!parsed)
      return {};
    CHECK(parsed->header.of == transfer::Of::leases);
    std::vector<uint32_t> leases(parsed->header.count);
    memcpy(leases.data(), parsed->payload.data(), parsed->payload.size());
    if (answers)
      answer(parsed->header.number);
    last = parsed->header.number;
    return leases;
  }
  void answer(uint32_t notice) {
    const std::lock_guard hold(progress.lock());
    told->acknowledged(notice);
    lessor->returned(told->take_returned());
  }

  Owner& owner;
  FakeProgress progress;
  transfer::KeyEnds ends;
  std::shared_ptr<FakeChannel> channel;
  std::shared_ptr<transfer::ToldKeys> told;
  std::shared_ptr<transfer::Lessor> lessor;
  std::vector<uint32_t> numbers;
  uint32_t last = 0;
};

TEST_CASE("who is alone may lease all that may be, and then one in place of another") {
  Owner owner;
  Peer peer(owner);
  for (size_t i = 0; i < parts; ++i)
    CHECK(peer.asks(i) == Status::ok);
  CHECK(peer.asks(0) == Status::fault); // it has these
  CHECK(peer.asks(parts) == Status::full);
  peer.yields(peer.numbers[3]);
  CHECK(peer.asks(parts) == Status::ok);
  CHECK(peer.asks(3) == Status::full);
}

// Who waits may hold a lock of the allocator that the provider needs for that.
TEST_CASE("who waits for a lease is let go before it is deregistered") {
  Owner owner;
  Peer peer(owner);
  const size_t before = owner.device.regions.size();
  REQUIRE(peer.asks(0) == Status::ok);
  size_t when_let_go = 0;
  owner.on_back = [&] { when_let_go = owner.device.regions.size(); };
  owner.recalls->begin_change(memory::all_stripes);
  peer.yields(peer.numbers[0]);
  CHECK(when_let_go == before + 1);
  CHECK(owner.device.regions.size() == before);
  owner.recalls->end_change(memory::all_stripes);
}

TEST_CASE("windows and leases together stay within the budget, whichever come first") {
  Owner owner;
  Peer peer(owner);
  const auto pinned = [&] {
    return owner.bench.world.counters.value(observe::Gauge::pinned_bytes);
  };
  const int64_t before = pinned(); // of keys and such
  const auto send_from = [&](size_t i) {
    ibv_sge sge{owner.at(i), part, owner.mr->lkey};
    registration::Hold hold;
    REQUIRE(owner.localize(sge, hold) == 0);
    owner.regions.release(owner.staging, hold);
  };
  for (size_t i = 0; i < 2 * parts; ++i)
    send_from(20 + i);
  CHECK(pinned() - before == 1 << 20); // all of it, as nothing is leased
  for (size_t i = 0; i < parts; ++i)
    REQUIRE(peer.asks(i) == Status::ok);
  CHECK(pinned() - before == 1 << 20);
  for (size_t i = 0; i < 2 * parts; ++i)
    send_from(20 + i);
  CHECK(pinned() - before == 1 << 20);
  for (const uint32_t number : peer.numbers)
    peer.yields(number);
  for (size_t i = 0; i < 2 * parts; ++i)
    send_from(20 + i);
  CHECK(pinned() - before == 1 << 20);
}

TEST_CASE("what is in use when leases take its room counts as beyond the budget") {
  Owner owner;
  Peer peer(owner);
  const auto value = [&](observe::Gauge gauge) { return owner.bench.world.counters.value(gauge); };
  std::vector<registration::Hold> posted;
  for (size_t i = 0; i < 16; ++i) {
    ibv_sge sge{owner.at(20 + i), part, owner.mr->lkey};
    REQUIRE(owner.localize(sge, posted.emplace_back(), IBV_ACCESS_LOCAL_WRITE, false) == 0);
  }
  const int64_t before = value(observe::Gauge::recv_forced_bytes);
  for (size_t i = 0; i < parts; ++i)
    REQUIRE(peer.asks(i) == Status::ok);
  CHECK(value(observe::Gauge::recv_forced_bytes) - before == value(observe::Gauge::leased_bytes));
  CHECK(value(observe::Gauge::forced_peak_bytes) >= value(observe::Gauge::recv_forced_bytes));
  for (auto& hold : posted)
    owner.regions.release(owner.staging, hold);
  CHECK(value(observe::Gauge::recv_forced_bytes) == 0);
}

TEST_CASE("who has less than its share has others give back what they have beyond theirs") {
  Owner owner;
  Peer first(owner);
  Peer second(owner);
  for (size_t i = 0; i < parts; ++i)
    REQUIRE(first.asks(i) == Status::ok);
  CHECK(second.asks(20) == Status::fault); // not now
  CHECK(owner.wakes == 1);
  owner.recalls->serve();
  CHECK(first.called_back(true).size() == parts / 2);
  for (size_t i = 20; i < 20 + parts / 2; ++i)
    CHECK(second.asks(i) == Status::ok);
  CHECK(second.asks(30) == Status::full);
  CHECK(first.asks(31) == Status::full);
  // Who has given all back has no share.
  for (const uint32_t number : second.numbers)
    second.yields(number);
  CHECK(first.asks(31) == Status::ok);
}

TEST_CASE("who has asked once and comes no more has no share for long") {
  Owner owner;
  Peer first(owner);
  Peer second(owner);
  for (size_t i = 0; i < parts; ++i)
    REQUIRE(first.asks(i) == Status::ok);
  CHECK(second.asks(20) == Status::fault);
  owner.recalls->serve();
  CHECK(first.called_back(true).size() == parts / 2);
  CHECK(first.asks(30) == Status::full);
  owner.bench.service.pass(transfer::Lessor::asks_again);
  CHECK(first.asks(30) == Status::ok);
}

TEST_CASE("what is out when a link is lost ends with the last queue pair that it may come by") {
  Owner owner;
  Peer gone(owner);
  for (size_t i = 0; i < parts; ++i)
    REQUIRE(gone.asks(i) == Status::ok);
  std::shared_ptr<transfer::LeftLeases> kept;
  {
    const std::lock_guard hold(gone.progress.lock());
    kept = gone.lessor->close();
  }
  Peer next(owner);
  CHECK(next.asks(0) == Status::fault);
  kept.reset();
  CHECK(next.asks(0) == Status::ok);
}

TEST_CASE("who does not give back holds a change up once, and is leased nothing meanwhile") {
  Owner owner;
  Peer honest(owner);
  Peer liar(owner);
  REQUIRE(liar.asks(0) == Status::ok);
  REQUIRE(honest.asks(1) == Status::ok);
  const auto stripe = memory::stripes_of({owner.at(0), owner.at(2)});
  owner.recalls->begin_change(stripe);
  owner.recalls->serve();
  CHECK(liar.called_back(false).size() == 1);
  CHECK(honest.called_back(true).size() == 1);
  CHECK_FALSE(owner.recalls->wait(stripe, 10ms));
  owner.recalls->overdue(stripe);
  owner.recalls->end_change(stripe);
  owner.recalls->serve();
  REQUIRE(owner.bench.lines.said.size() == 1);
  CHECK(owner.bench.lines.said[0].find("has not given back 1 leases") != std::string::npos);
  // The next change does not wait for it.
  owner.recalls->begin_change(stripe);
  CHECK(owner.recalls->wait(stripe, 10ms));
  owner.recalls->end_change(stripe);
  owner.bench.service.pass(2 * transfer::Lessor::late_pause);
  CHECK(liar.asks(2) == Status::fault);
  CHECK(honest.asks(2) == Status::ok);
  liar.answer(liar.last);
  CHECK(liar.asks(3) == Status::ok);
}

TEST_CASE("of what is leased no page is brought, and none beyond one that is not there") {
  Owner owner;
  Peer peer(owner);
  const auto gone = [&](size_t i, size_t page) {
    REQUIRE(madvise(reinterpret_cast<void*>(owner.at(i) + page * 4096), 4096, MADV_DONTNEED) == 0);
  };
  gone(0, 0);
  CHECK(peer.asks(0) == Status::fault);
  gone(1, 5);
  std::shared_ptr<Grant> lease;
  REQUIRE(owner.regions.lease(owner.key, owner.at(1) + 8192, 8192, lease) == 0);
  CHECK(lease->start == owner.at(1));
  CHECK(lease->bytes == 5UL * 4096);
  registration::Regions::revoke(lease);
  CHECK(owner.regions.lease(owner.key, owner.at(1) + 4 * 4096, 8192, lease) == EAGAIN);
  REQUIRE(owner.regions.lease(owner.key, owner.at(1) + 6 * 4096, 8, lease) == 0);
  CHECK(lease->start == owner.at(1) + 6 * 4096);
  CHECK(lease->bytes == 10UL * 4096);
  registration::Regions::revoke(lease);
}

TEST_CASE("what is leased elsewhere stays where memory changes") {
  Owner owner;
  Peer peer(owner);
  REQUIRE(peer.asks(0) == Status::ok);
  const auto its = memory::stripes_of({owner.at(0), owner.at(1)});
  const auto others = memory::all_stripes & ~its;
  owner.recalls->begin_change(others);
  owner.recalls->serve();
  CHECK(peer.channel->sent() == 0);
  CHECK(owner.recalls->wait(others, 10ms));
  CHECK(peer.asks(1) == Status::ok);
  owner.recalls->end_change(others);
}

struct Bound final : transfer::Target {
  explicit Bound(Owner& o) : owner(o) {}
  bool allows(transfer::Right) const override { return true; }
  bool leaving() const override { return false; }
  const ibv_pd* pd() const override { return &owner.device.pd; }
  registration::Regions& regions() const override { return owner.regions; }
  bool settle_receives(const transfer::RequestHeader&) override { return true; }
  void expect_immediate(uint64_t, uint32_t) override {}
  transfer::Status take_ahead(const transfer::RequestHeader&, std::span<const std::byte>) override {
    return transfer::Status::refused;
  }
  void lent_over_lost_link(transfer::Grants) override {}
  Owner& owner;
};

// A peer that asks by the protocol.
struct Asking {
  explicit Asking(Owner& o) : owner(o), target(o) {
    targets.add(1, &target);
    channel->open(*protocol);
    channel->bind(1, 77, true);
  }
  ~Asking() {
    channel->end();
    owner.bench.service.run_tasks();
  }
  transfer::ReplyHeader ask(uint32_t key, uint64_t address, uint64_t instead_of = 0) {
    transfer::RequestHeader h{};
    h.kind = static_cast<uint8_t>(transfer::Kind::lease);
    h.run = 1;
    h.target = 1;
    h.source = 77;
    h.address = h.total_address = address;
    h.total = h.length = 8;
    h.key = key;
    h.receive = instead_of;
    const auto bytes = std::as_bytes(std::span(&h, 1));
    channel->receive({bytes.begin(), bytes.end()});
    const auto message = channel->take();
    const auto reply = adverb::test::only_reply(message);
    REQUIRE(reply);
    return reply->header;
  }
  Status asks(uint32_t key, uint64_t address) {
    return static_cast<Status>(ask(key, address).status);
  }

  Owner& owner;
  Bound target;
  transfer::Targets targets;
  FakeProgress progress;
  std::shared_ptr<FakeChannel> channel = std::make_shared<FakeChannel>(
      progress, link::Channel::Role::server,
      FakeChannel::Size{.message_max = 4096, .version = transfer::version_leases});
  std::shared_ptr<link::Protocol> protocol = transfer::make_protocol(
      owner.bench.world, std::make_shared<transfer::Handlers>(transfer::handler_list()), targets);
};

TEST_CASE("what is asked for is measured by the pages that it keeps, not by its bytes") {
  constexpr uint64_t page = 4096;
  Owner owner;
  std::vector<ibv_mr*> regions;
  const auto region_at = [&](uint64_t address) {
    ibv_mr* mr = nullptr;
    REQUIRE_FALSE(
        owner.regions.add(owner.backend("elastic"),
                          {&owner.device.pd, reinterpret_cast<void*>(address), page, address,
                           region_test::all_rights, registration::Wanted::Verb::reg_mr},
                          mr));
    regions.push_back(mr);
    return mr->rkey;
  };
  const auto at = [&](size_t i) { return owner.at(0) + i * 2 * page; };
  const auto on_two_pages = [&](size_t i) { return at(i) + page / 2; };
  {
    Asking peer(owner);
    // All but a page.
    const size_t pairs = parts * part / (2 * page) - 1;
    for (size_t i = 0; i < pairs; ++i)
      REQUIRE(peer.asks(region_at(on_two_pages(i)), on_two_pages(i)) == Status::ok);
    REQUIRE(peer.asks(region_at(at(pairs)), at(pairs)) == Status::ok);
    const uint64_t next = on_two_pages(pairs + 1);
    CHECK(peer.asks(region_at(next), next) == Status::full); // and not "later"
    CHECK(peer.asks(region_at(at(pairs + 3)), at(pairs + 3)) == Status::ok);
  }
  for (ibv_mr* mr : regions)
    CHECK(owner.regions.remove(mr).rc == 0);
}

TEST_CASE(
    "what a peer gives back for another is back, though the queue pair it asks by has ended") {
  Owner owner;
  Asking peer(owner);
  const auto ask = [&](size_t i, uint64_t instead_of) {
    return peer.ask(owner.key, owner.at(i), instead_of);
  };
  const auto leased = ask(0, 0);
  REQUIRE(leased.status == static_cast<uint8_t>(Status::ok));
  const auto out = [&] { return owner.bench.world.counters.value(observe::Gauge::leased_bytes); };
  CHECK(out() == part);
  peer.targets.remove(1);
  CHECK(ask(1, leased.grant).status == static_cast<uint8_t>(Status::refused));
  CHECK(out() == 0);
}

} // namespace
