// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Copies for peers: jobs of the service's, of which a barrier knows. They run here when the test
// says so, and in the order it says.
#include "catch.h"
#include "fake_channel.h"
#include "fake_provider.h"
#include "skip.h"
#include "slow_page.h"
#include "test_world.h"
#include "transfer/protocol.h"
#include "transfer/responder.h"

#include <array>
#include <atomic>
#include <initializer_list>
#include <span>
#include <thread>
#include <vector>

using namespace adverb;
using namespace adverb::test;
using transfer::Kind;
using transfer::RequestHeader;
using transfer::Status;

namespace {

constexpr size_t queue_pairs = 12;
constexpr std::byte mark{7};

struct FakeTarget final : transfer::Target {
  bool allows(transfer::Right) const override { return serves; }
  bool leaving() const override { return leaves; }
  const ibv_pd* pd() const override { return of_pd; }
  registration::Regions& regions() const override { return *of; }
  bool settle_receives(const RequestHeader&) override { return true; }
  void expect_immediate(uint64_t n, uint32_t) override { expected = n; }
  transfer::Status take_ahead(const transfer::RequestHeader&, std::span<const std::byte>) override {
    return transfer::Status::refused;
  }
  void lent_over_lost_link(transfer::Grants) override {}
  bool serves = true;
  bool leaves = false;
  uint64_t expected = 0;
  const ibv_pd* of_pd = nullptr;
  registration::Regions* of = nullptr;
};

struct Owner {
  explicit Owner(std::span<std::byte> where = {}) : memory(where.empty() ? std::span(own) : where) {
    channel = std::make_shared<FakeChannel>(progress, link::Channel::Role::server,
                                            FakeChannel::Size{.credits = queue_pairs});
    protocol = transfer::make_protocol(
        bench.world, std::make_shared<transfer::Handlers>(transfer::handler_list()), targets);
    channel->open(*protocol);
    for (uint64_t i = 0; i < queue_pairs; ++i) {
      all[i].of = &regions;
      all[i].of_pd = &device.pd;
      targets.add(i + 1, &all[i]);
      channel->bind(i + 1, 77, true);
    }
    const unsigned access =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    CHECK_FALSE(regions.add(regions.backend(*policy::find_backend("none")),
                            {&device.pd, memory.data(), memory.size(),
                             reinterpret_cast<uintptr_t>(memory.data()), access,
                             registration::Wanted::Verb::reg_mr},
                            mr));
    REQUIRE(mr != nullptr);
  }
  ~Owner() {
    channel->end();
    for (uint64_t i = 0; i < queue_pairs; ++i)
      targets.remove(i + 1);
    bench.service.run_tasks();
    regions.close();
  }

  // To or from cell `cell` of 8 bytes, on that queue pair.
  void ask(Kind kind, uint64_t request, uint64_t target, size_t cell) {
    channel->receive(message_of(kind, request, target, cell));
  }
  // One after the other from `request` and `cell` on, in one message.
  void ask_together(std::initializer_list<Kind> kinds, uint64_t request, uint64_t target,
                    size_t cell, uint32_t bytes = 8) {
    std::vector<std::byte> all;
    for (const Kind kind : kinds) {
      const auto one = message_of(kind, request++, target, cell++, bytes);
      all.resize(transfer::next_place(all.size()));
      all.insert(all.end(), one.begin(), one.end());
    }
    channel->receive(all);
  }
  std::vector<std::byte> message_of(Kind kind, uint64_t request, uint64_t target, size_t cell,
                                    uint32_t bytes = 8) const {
    RequestHeader h{};
    h.kind = static_cast<uint8_t>(kind);
    h.flags = transfer::last_part | (kind == Kind::write ? transfer::with_immediate : 0);
    h.run = 1;
    h.target = target;
    h.source = 77;
    h.request = h.receive = request;
    h.address = h.total_address = reinterpret_cast<uintptr_t>(&memory[8 * cell]);
    h.length = bytes;
    h.total = bytes;
    h.key = mr->rkey;
    std::vector<std::byte> message(sizeof h + (kind == Kind::write ? bytes : 0), mark);
    memcpy(message.data(), &h, sizeof h);
    return message;
  }
  // The next message answers these so; payloads in `read`.
  void expect_together(std::initializer_list<std::pair<uint64_t, Status>> answers) {
    const auto message = channel->take();
    std::span<const std::byte> rest = message;
    read.clear();
    for (const auto& [request, status] : answers) {
      const auto reply = transfer::next_reply(rest);
      REQUIRE(reply);
      CHECK(reply->header.request == request);
      CHECK(reply->header.status == static_cast<uint8_t>(status));
      read.emplace_back(reply->payload.begin(), reply->payload.end());
    }
    CHECK(rest.empty());
  }
  void expect(uint64_t request, Status status) {
    const auto parsed = only_reply(channel->take());
    REQUIRE(parsed);
    CHECK(parsed->header.request == request);
    CHECK(parsed->header.status == static_cast<uint8_t>(status));
  }
  std::vector<service::Job*> posted() {
    std::vector<service::Job*> out;
    while (!bench.service.jobs.empty())
      out.push_back(bench.service.next_job());
    return out;
  }
  std::byte at(size_t cell) const { return memory[8 * cell]; }

  FakeProvider device;
  world_test::Bench bench{&FakeProvider::table()};
  FakeProgress progress;
  transfer::Targets targets;
  registration::Regions regions{bench.world, &device.context};
  std::array<FakeTarget, queue_pairs> all;
  std::shared_ptr<link::Protocol> protocol;
  std::shared_ptr<FakeChannel> channel;
  alignas(4096) std::array<std::byte, 4096> own{};
  std::span<std::byte> memory;
  ibv_mr* mr = nullptr;
  std::vector<std::vector<std::byte>> read;
};

} // namespace

TEST_CASE("a copy is made by a job, and then the request is answered") {
  Owner owner;
  owner.ask(Kind::write, 5, 1, 0);
  CHECK(owner.at(0) == std::byte{0});
  CHECK(owner.channel->sent() == 0);
  owner.bench.service.run_tasks();
  CHECK(owner.at(0) == mark);
  CHECK(owner.all[0].expected == 5);
  owner.expect(5, Status::ok);
  owner.ask(Kind::read, 6, 1, 0);
  owner.bench.service.run_tasks();
  owner.expect(6, Status::ok);
  CHECK(owner.channel->buffers_out() == 0);
}

TEST_CASE("a queue pair's requests are copied one after another, those of others at once") {
  Owner owner;
  owner.ask(Kind::write, 1, 1, 0);
  owner.ask(Kind::read, 2, 1, 0);
  owner.ask(Kind::write, 3, 2, 1);
  const auto first = owner.posted();
  REQUIRE(first.size() == 2);
  first[1]->run(); // the first sleeps
  owner.expect(3, Status::ok);
  CHECK(owner.posted().empty());
  first[0]->run();
  owner.expect(1, Status::ok);
  owner.bench.service.run_tasks();
  owner.expect(2, Status::ok);
}

TEST_CASE("requests that share a message are copied one after another") {
  Owner owner;
  owner.ask_together({Kind::write, Kind::read, Kind::write}, 1, 1, 0, 5);
  owner.ask(Kind::read, 4, 1, 2);
  owner.ask(Kind::write, 5, 2, 9);
  owner.memory[8] = std::byte{42};
  auto jobs = owner.posted();
  REQUIRE(jobs.size() == 2);
  jobs[0]->run();
  CHECK(owner.at(0) == mark);
  const auto second = owner.posted();
  REQUIRE(second.size() == 1); // and it sleeps
  jobs[1]->run();
  owner.expect(5, Status::ok);
  CHECK(owner.posted().empty());
  CHECK(owner.channel->sent() == 0);
  second[0]->run();
  owner.bench.service.run_tasks();
  owner.expect_together({{1, Status::ok}, {2, Status::ok}, {3, Status::ok}});
  CHECK(owner.read[1].size() == 5);
  CHECK(owner.read[1].front() == std::byte{42});
  CHECK(owner.at(2) == mark);
  CHECK(owner.all[0].expected == 3);
  owner.expect(4, Status::ok);
  CHECK(owner.channel->buffers_out() == 0);
}

TEST_CASE("what of a message has not begun when its region ends is refused, and what has is not") {
  Owner owner;
  owner.ask_together({Kind::write, Kind::write, Kind::write}, 1, 1, 0);
  owner.posted()[0]->run();
  const auto jobs = owner.posted();
  REQUIRE(owner.regions.remove(owner.mr).known);
  owner.progress.barrier();
  jobs[0]->run();
  owner.bench.service.run_tasks();
  owner.expect_together({{1, Status::ok}, {2, Status::refused}, {3, Status::halted}});
  CHECK(owner.at(0) == mark);
  CHECK(owner.at(1) == std::byte{0});
  CHECK(owner.at(2) == std::byte{0});
}

TEST_CASE("a message that is judged anew keeps what it has been answered") {
  Owner owner;
  owner.ask_together({Kind::write, Kind::read}, 1, 1, 0);
  owner.posted()[0]->run();
  owner.all[0].leaves = true;
  owner.progress.barrier();
  owner.bench.service.run_tasks();
  CHECK(owner.channel->sent() == 0);
  owner.ask(Kind::write, 9, 2, 9); // whose answer must have a message of its own
  owner.bench.service.run_tasks();
  owner.expect(9, Status::ok);
  owner.all[0].leaves = false;
  owner.bench.service.pass(std::chrono::milliseconds(10));
  owner.expect_together({{1, Status::ok}, {2, Status::ok}});
}

TEST_CASE("a READ whose bytes the message that answers has no room for is refused") {
  Owner owner; // 512 bytes; 64 of them for each answer
  owner.ask_together({Kind::read, Kind::read, Kind::write}, 1, 1, 0, 160);
  owner.bench.service.run_tasks();
  owner.expect_together({{1, Status::ok}, {2, Status::ok}, {3, Status::ok}});
  owner.ask_together({Kind::read, Kind::read, Kind::read}, 4, 1, 0, 161);
  owner.bench.service.run_tasks();
  owner.expect_together({{4, Status::ok}, {5, Status::refused}, {6, Status::halted}});
}

TEST_CASE("as many copies of a peer sleep as may, and the others follow") {
  Owner owner;
  for (uint64_t i = 1; i <= queue_pairs; ++i)
    owner.ask(Kind::write, i, i, i);
  auto jobs = owner.posted();
  CHECK(jobs.size() == 8);
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i]->run();
    const auto more = owner.posted();
    CHECK(more.size() == (i < queue_pairs - 8 ? 1U : 0U));
    jobs.insert(jobs.end(), more.begin(), more.end());
  }
  CHECK(jobs.size() == queue_pairs);
  CHECK(owner.channel->sent() == queue_pairs);
}

TEST_CASE("what has not begun when its region ends never lands, and is refused") {
  Owner owner;
  owner.ask(Kind::write, 1, 1, 0);
  owner.ask(Kind::write, 2, 2, 1);
  const auto jobs = owner.posted();
  jobs[1]->run();
  const auto ended = owner.regions.remove(owner.mr);
  REQUIRE(ended.known);
  owner.progress.barrier();
  jobs[0]->run();
  CHECK(owner.at(0) == std::byte{0});
  CHECK(owner.at(1) == mark);
  owner.expect(2, Status::ok);
  owner.expect(1, Status::refused);
}

TEST_CASE("what has not begun when its queue pair ends never lands") {
  const bool gone = GENERATE(true, false); // or in error
  Owner owner;
  owner.ask(Kind::write, 1, 1, 0);
  if (gone)
    owner.targets.remove(1);
  else
    owner.all[0].serves = false;
  owner.progress.barrier();
  owner.bench.service.run_tasks();
  CHECK(owner.at(0) == std::byte{0});
  CHECK(owner.all[0].expected == 0);
  owner.expect(1, Status::refused);
}

TEST_CASE("a queue pair that leaves refuses nothing, and if it stays is served") {
  Owner owner;
  owner.ask(Kind::write, 1, 1, 0);
  owner.all[0].leaves = true;
  owner.progress.barrier();
  owner.bench.service.run_tasks();
  CHECK(owner.at(0) == std::byte{0});
  CHECK(owner.channel->sent() == 0);
  owner.all[0].leaves = false;
  owner.bench.service.pass(std::chrono::milliseconds(10));
  CHECK(owner.at(0) == mark);
  owner.expect(1, Status::ok);
}

TEST_CASE("what still stands goes on behind a barrier") {
  Owner owner;
  owner.ask(Kind::write, 1, 1, 0);
  owner.progress.barrier();
  owner.bench.service.run_tasks();
  CHECK(owner.at(0) == mark);
  owner.expect(1, Status::ok);
}

TEST_CASE("a region that was moved under its key gets nothing that was meant for its old place") {
  Owner owner;
  owner.ask(Kind::write, 1, 1, 0);
  alignas(4096) static std::array<std::byte, 4096> elsewhere{};
  owner.all[0].of->change(
      owner.mr, {IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, elsewhere.data(), elsewhere.size(), 0},
      [](const auto&, auto*&) { return 0; });
  owner.progress.barrier({.regions = &owner.regions, .key = owner.mr->rkey});
  owner.bench.service.run_tasks();
  CHECK(owner.at(0) == std::byte{0});
  owner.expect(1, Status::refused);
}

TEST_CASE("copies at a page where another is under way are put aside, and take no thread") {
  SlowPage page;
  if (!page) {
    adverb::test::skip("userfaultfd is not permitted");
    return;
  }
  Owner owner(page.memory());
  for (uint64_t i = 1; i <= queue_pairs; ++i)
    owner.ask(Kind::write, i, i, i);
  auto jobs = owner.posted();
  REQUIRE(jobs.size() == 8);
  std::thread sleeper([&] { jobs[0]->run(); });
  page.await();
  size_t ran = 1;
  for (size_t at = 1; at < jobs.size(); ++at, ++ran) {
    jobs[at]->run(); // returns at once
    const auto more = owner.posted();
    jobs.insert(jobs.end(), more.begin(), more.end());
  }
  CHECK(ran == queue_pairs);
  CHECK(owner.channel->sent() == 0);
  owner.progress.barrier({.target = 5}); // stands, and is not waited for
  page.come();
  sleeper.join();
  owner.bench.service.run_tasks();
  CHECK(owner.channel->sent() == queue_pairs);
}

TEST_CASE("a barrier waits for a WRITE of its scope that has begun, and for no other") {
  SlowPage page;
  if (!page) {
    adverb::test::skip("userfaultfd is not permitted");
    return;
  }
  Owner owner(page.memory());
  owner.ask(Kind::write, 1, 1, 0);
  const auto jobs = owner.posted();
  std::thread sleeper([&] { jobs[0]->run(); });
  page.await();
  owner.targets.remove(1);
  owner.targets.remove(2);
  owner.progress.barrier({.target = 2});
  std::atomic<bool> over{false};
  std::thread ender([&] {
    owner.progress.barrier({.target = 1});
    over = true;
  });
  owner.progress.barrier({.target = 2}); // also while the other waits
  owner.progress.barrier({.regions = &owner.regions, .key = owner.mr->rkey + 1});
  CHECK_FALSE(over);
  page.come();
  ender.join();
  sleeper.join();
  CHECK(owner.at(0) == mark);
}

TEST_CASE("a READ that has begun is of no effect behind a barrier, and is not waited for") {
  SlowPage page;
  if (!page) {
    adverb::test::skip("userfaultfd is not permitted");
    return;
  }
  Owner owner(page.memory());
  owner.ask(Kind::read, 1, 1, 0);
  const auto jobs = owner.posted();
  std::thread sleeper([&] { jobs[0]->run(); });
  page.await();
  const auto ended = owner.regions.remove(owner.mr);
  owner.progress.barrier({.regions = &owner.regions, .key = ended.key->value()});
  page.come();
  sleeper.join();
  owner.expect(1, Status::refused);
}

TEST_CASE("what has not begun when the link ends never lands") {
  const bool first = GENERATE(true, false); // of its message
  Owner owner;
  owner.ask_together({Kind::read, Kind::write}, 1, 1, first ? 1 : 0);
  if (!first)
    owner.posted()[0]->run();
  owner.channel->end();
  owner.bench.service.run_tasks();
  for (const size_t cell : {0, 1, 2})
    CHECK(owner.at(cell) == std::byte{0});
  CHECK(owner.channel->buffers_out() == 0);
}
