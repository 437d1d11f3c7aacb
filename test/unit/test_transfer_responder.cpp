// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The responder's table, its tokens and its order, with handlers of the test's own and a channel
// without a device.
#include "catch.h"
#include "fake_channel.h"
#include "key_with.h"
#include "test_world.h"
#include "toy_handler.h"
#include "transfer/protocol.h"
#include "transfer/responder.h"

#include <array>
#include <csignal>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace adverb;
using namespace adverb::test;
using namespace std::chrono_literals;
using transfer::Kind;
using transfer::ReplyHeader;
using transfer::RequestHeader;
using transfer::Status;

namespace {

struct FakeTarget final : transfer::Target {
  bool allows(transfer::Right) const override { return true; }
  bool leaving() const override { return false; }
  const ibv_pd* pd() const override { return nullptr; }
  registration::Regions& regions() const override { throw std::bad_alloc(); }
  bool settle_receives(const RequestHeader&) override {
    ++asked;
    return settled;
  }
  int asked = 0;
  void expect_immediate(uint64_t, uint32_t) override {}
  void lent_over_lost_link() override {}
  bool settled = true;
};

struct Owner {
  explicit Owner(const FakeChannel::Size& size = {}) {
    auto handlers = std::make_shared<transfer::Handlers>(transfer::handler_list());
    for (const auto* row : toy_rows)
      handlers->add(*row);
    channel = std::make_shared<FakeChannel>(progress, link::Channel::Role::server, size);
    protocol = transfer::make_protocol(bench.world, handlers, targets);
    channel->open(*protocol);
    for (uint64_t i = 0; i < all.size(); ++i)
      targets.add(i + 1, &all[i]);
  }
  ~Owner() {
    for (auto& k : kept)
      if (k.token)
        k.token.answer(Status::ok);
    channel->end();
    for (uint64_t i = 0; i < all.size(); ++i)
      targets.remove(i + 1);
    bench.service.run_tasks();
    kept.clear();
  }

  void ask(uint8_t kind, uint64_t request, uint64_t target = 0, uint32_t run = 1,
           uint8_t version = 0, size_t payload = 0) {
    std::vector<std::byte> message(sizeof(RequestHeader) + payload);
    RequestHeader h{};
    h.kind = kind;
    h.version = version;
    h.run = run;
    h.target = target;
    h.source = 77;
    h.request = request;
    h.length = static_cast<uint32_t>(payload);
    memcpy(message.data(), &h, sizeof h);
    for (size_t i = 0; i < payload; ++i)
      message[sizeof h + i] = std::byte(i);
    channel->receive(message);
  }
  // The next reply; its payload in `payload`.
  ReplyHeader reply() {
    const auto message = channel->take();
    const auto parsed = transfer::parse_reply(message);
    REQUIRE(parsed);
    payload.assign(parsed->payload.begin(), parsed->payload.end());
    return parsed->header;
  }
  void expect(uint64_t request, Status status) {
    const auto r = reply();
    CHECK(r.request == request);
    CHECK(r.source == 77);
    CHECK(r.status == static_cast<uint8_t>(status));
  }

  world_test::Bench bench;
  FakeProgress progress;
  transfer::Targets targets;
  std::array<FakeTarget, 2> all;
  std::shared_ptr<link::Protocol> protocol;
  std::shared_ptr<FakeChannel> channel;
  std::vector<std::byte> payload;
};

} // namespace

TEST_CASE("every row of the list is in the table under its kind") {
  const transfer::Handlers handlers(transfer::handler_list());
  size_t found = 0;
  for (unsigned kind = 0; kind < 256; ++kind)
    if (const auto* row = handlers.find(static_cast<uint8_t>(kind))) {
      CHECK(row->kind == kind);
      CHECK(row->run != nullptr);
      ++found;
    }
  CHECK(found == transfer::handler_list().size());
  CHECK(std::string(handlers.find(static_cast<uint8_t>(Kind::write))->name) == "write");
}

TEST_CASE("one row more is one kind more that peers are served") {
  Owner owner;
  owner.ask(toy_echo, 5, 0, 1, 0, 100);
  owner.expect(5, Status::ok);
  REQUIRE(owner.payload.size() == 100);
  CHECK(owner.payload.front() == std::byte(99));
  CHECK(owner.payload.back() == std::byte(0));
  CHECK(owner.channel->buffers_out() == 0);
}

TEST_CASE("a kind or a version not known here is refused, and the link goes on") {
  Owner owner;
  owner.ask(99, 1);
  owner.expect(1, Status::unsupported);
  owner.ask(toy_echo, 2, 0, 1, 3);
  owner.expect(2, Status::unsupported);
  owner.ask(toy_echo, 3, 0, 1, 2);
  owner.expect(3, Status::ok);
  CHECK_FALSE(owner.channel->down());
}

TEST_CASE("a malformed request, or one not of its kind's shape, ends the link") {
  const auto bad = GENERATE(0, 1, 2);
  Owner owner;
  if (bad == 0)
    owner.channel->receive(std::vector<std::byte>(sizeof(RequestHeader) - 1));
  else if (bad == 1)
    owner.ask(0, 1);
  else
    owner.ask(static_cast<uint8_t>(Kind::query), 1, 1, 1, 0, 8);
  CHECK(owner.channel->down());
  CHECK(owner.channel->sent() == 0);
}

TEST_CASE("a request that is not answered holds up its queue pair and no other") {
  Owner owner;
  owner.ask(toy_later, 1, 1);
  owner.ask(toy_later, 2, 1);
  owner.ask(toy_later, 3, 2);
  owner.ask(toy_echo, 4);
  owner.expect(4, Status::ok);
  REQUIRE(kept.size() == 2); // of the first queue pair only the first
  CHECK(kept[0].request == 1);
  CHECK(kept[1].request == 3);
  kept[1].token.answer(Status::ok);
  owner.expect(3, Status::ok);
  CHECK(owner.channel->sent() == 0);
  std::thread([] { kept[0].token.answer(Status::ok); }).join();
  owner.expect(1, Status::ok);
  CHECK(kept.size() == 2);
  owner.bench.service.run_tasks();
  REQUIRE(kept.size() == 3);
  CHECK(kept[2].request == 2);
  kept[2].token.answer(Status::ok);
  owner.expect(2, Status::ok);
}

TEST_CASE("the channel's own domain is one, and what belongs to none waits for nothing") {
  Owner owner;
  owner.ask(toy_channel, 1, 1);
  owner.ask(toy_channel, 2, 2);
  owner.ask(toy_alone, 3);
  owner.ask(toy_alone, 4);
  REQUIRE(kept.size() == 3);
  CHECK(kept[0].request == 1);
  CHECK(kept[1].request == 3);
  CHECK(kept[2].request == 4);
  for (auto& k : kept)
    k.token.answer(Status::ok);
  owner.bench.service.run_tasks();
  REQUIRE(kept.size() == 4);
  CHECK(kept[3].request == 2);
  kept[3].token.answer(Status::ok);
}

TEST_CASE("a failure halts its run on its queue pair, told at once or later") {
  const bool later = GENERATE(false, true);
  Owner owner;
  owner.ask(later ? toy_later : toy_fail, 1, 1);
  owner.ask(toy_fail, 2, 1);
  if (later)
    kept[0].token.answer(Status::refused);
  owner.bench.service.run_tasks();
  owner.expect(1, Status::refused);
  owner.expect(2, Status::halted);
  owner.ask(toy_fail, 3, 2); // another queue pair's
  owner.expect(3, Status::refused);
  owner.ask(toy_fail, 4, 1, 2); // a higher run
  owner.expect(4, Status::refused);
  owner.ask(toy_fail, 5, 9); // no such queue pair
  owner.expect(5, Status::refused);
}

TEST_CASE("a queue pair whose receives are not settled waits, and others do not") {
  Owner owner;
  owner.all[0].settled = false;
  owner.ask(toy_fail, 1, 1);
  owner.ask(toy_fail, 2, 2);
  owner.expect(2, Status::refused);
  owner.bench.service.pass(1ms);
  CHECK(owner.channel->sent() == 0);
  owner.all[0].settled = true;
  owner.bench.service.pass(1ms); // tried again before long
  owner.expect(1, Status::refused);
}

// Its program may destroy it, and that waits for the program's own threads.
TEST_CASE("a queue pair that stays unsettled is asked ever less often") {
  Owner owner;
  owner.all[0].settled = false;
  owner.ask(toy_fail, 1, 1);
  owner.bench.service.pass(100ms);
  CHECK(owner.all[0].asked < 200);
  owner.all[0].settled = true;
  owner.bench.service.pass(5ms);
  owner.expect(1, Status::refused);
  // The next one is asked often again.
  owner.all[0].settled = false;
  owner.all[0].asked = 0;
  owner.ask(toy_fail, 2, 1, 2);
  owner.bench.service.pass(1ms);
  CHECK(owner.all[0].asked > 3);
}

TEST_CASE("requests wait for room for their replies, in order") {
  Owner owner({.credits = 3});
  owner.channel->keep_buffers = true;
  for (uint64_t i = 1; i <= 6; ++i)
    owner.ask(toy_echo, i);
  CHECK(owner.channel->sent() == 4);
  owner.channel->complete();
  for (uint64_t i = 1; i <= 6; ++i)
    owner.expect(i, Status::ok);
}

TEST_CASE("a peer that asks for far more than its credits is cut off") {
  Owner owner({.credits = 2});
  for (uint64_t i = 1; i <= 5; ++i)
    owner.ask(toy_alone, i);
  CHECK(owner.channel->down());
}

TEST_CASE("a handler that throws has refused") {
  Owner owner;
  owner.ask(toy_throw, 1);
  owner.expect(1, Status::refused);
  owner.ask(toy_echo, 2);
  owner.expect(2, Status::ok);
}

TEST_CASE("what throws before a handler runs has refused, too, and stands in nobody's way") {
  Owner owner;
  owner.ask(toy_named, 1, 1);
  owner.expect(1, Status::refused);
  owner.ask(toy_fail, 2, 1, 2);
  owner.expect(2, Status::refused);
  CHECK(owner.bench.world.counters.value(observe::Counter::exceptions_caught) == 1);
}

// It is acknowledged behind all requests that may name it, and some of these wait here.
TEST_CASE("a key is let go behind the requests that came before its acknowledgement") {
  Owner owner;
  const auto pool = std::make_shared<registration::FreeKeys>();
  to_tell = key_with(pool, 7);
  owner.ask(toy_told, 1);
  owner.expect(1, Status::ok);
  owner.ask(toy_later, 2, 1);
  owner.ask(toy_later, 3, 1);
  owner.targets.key_ends().ended(std::exchange(to_tell, nullptr));
  const auto notice = owner.channel->take();
  const auto parsed = transfer::parse_notice(notice);
  REQUIRE(parsed);
  transfer::NoticeHeader h{};
  h.kind = transfer::notice_kind;
  h.number = parsed->header.number;
  std::vector<std::byte> answer(sizeof h);
  memcpy(answer.data(), &h, sizeof h);
  owner.channel->receive(answer);
  owner.ask(toy_later, 4, 1); // it came later
  CHECK(pool->keys.empty());
  for (const size_t at : {0, 1}) {
    REQUIRE(kept.size() == at + 1);
    CHECK(pool->keys.empty());
    kept[at].token.answer(Status::ok);
    owner.bench.service.run_tasks();
  }
  CHECK(pool->keys.size() == 1);
  CHECK_FALSE(owner.channel->down());
  owner.channel->receive(answer);
  CHECK(owner.channel->down()); // once
}

TEST_CASE("a token dropped unanswered is a handler's fault: it stops a debug build, else refuses") {
  const pid_t child = fork();
  if (child == 0) {
    close(2);
    signal(SIGABRT, SIG_DFL); // not Catch2's report
    Owner owner;
    owner.ask(toy_drop, 1);
    const auto message = owner.channel->take();
    const auto parsed = transfer::parse_reply(message);
    _exit(parsed && parsed->header.status == static_cast<uint8_t>(Status::refused) ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
#ifdef NDEBUG
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
#else
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT));
#endif
}

TEST_CASE("a token outlives its link") {
  Owner owner;
  owner.ask(toy_later, 1, 1);
  owner.ask(toy_later, 2, 1);
  owner.channel->end();
  CHECK(owner.channel->buffers_out() == 1); // the one that waited is gone
  kept[0].token.answer(Status::ok);
  CHECK(owner.channel->sent() == 0);
  owner.bench.service.run_tasks();
  CHECK(owner.channel->buffers_out() == 0);
}
