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
  transfer::Status take_ahead(const transfer::RequestHeader&, std::span<const std::byte>) override {
    return transfer::Status::refused;
  }
  void lent_over_lost_link(transfer::Grants) override {}
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
    for (uint64_t i = 0; i < all.size(); ++i) {
      targets.add(i + 1, &all[i]);
      channel->bind(i + 1, 77, true);
    }
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
  static RequestHeader in_turn(uint64_t request, uint64_t target) {
    RequestHeader h{};
    h.kind = toy_turn;
    h.run = 1;
    h.target = target;
    h.source = 77;
    h.request = request;
    return h;
  }
  // In one message.
  void ask(const std::vector<RequestHeader>& requests) {
    std::vector<std::byte> message(requests.size() * sizeof(RequestHeader));
    memcpy(message.data(), requests.data(), message.size());
    channel->receive(message);
  }
  // The next message answers these so.
  void expect(const std::vector<std::pair<uint64_t, Status>>& answers) {
    const auto message = channel->take();
    std::span<const std::byte> rest = message;
    for (const auto& [request, status] : answers) {
      const auto r = transfer::next_reply(rest);
      REQUIRE(r);
      CHECK(r->header.request == request);
      CHECK(r->header.status == static_cast<uint8_t>(status));
    }
    CHECK(rest.empty());
  }
  // The next reply; its payload in `payload`.
  ReplyHeader reply() {
    const auto message = channel->take();
    const auto parsed = only_reply(message);
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

TEST_CASE("requests that share a message are served in order, and answered by one") {
  Owner owner;
  owner.ask({Owner::in_turn(1, 1), Owner::in_turn(2, 1), Owner::in_turn(3, 1)});
  owner.ask({Owner::in_turn(4, 1)});
  owner.ask({Owner::in_turn(5, 2)});
  REQUIRE(kept.size() == 2); // another queue pair's waits for none of them
  CHECK(kept[1].request == 5);
  kept[1].token.answer(Status::ok);
  owner.expect({{5, Status::ok}});
  for (const size_t at : {0, 2, 3}) {
    CHECK(owner.channel->sent() == 0);
    REQUIRE(kept.size() > at);
    CHECK(kept[at].request == (at == 0 ? 1 : at));
    kept[at].token.answer(Status::ok);
    owner.bench.service.run_tasks();
  }
  owner.expect({{1, Status::ok}, {2, Status::ok}, {3, Status::ok}});
  REQUIRE(kept.size() == 5);
  CHECK(kept[4].request == 4);
  CHECK(owner.channel->buffers_out() == 1);
}

TEST_CASE("what stands behind a failure in its message is halted with it") {
  Owner owner;
  owner.ask({Owner::in_turn(1, 1), Owner::in_turn(2, 1), Owner::in_turn(3, 1)});
  owner.ask({Owner::in_turn(4, 1)});
  kept[0].token.answer(Status::ok);
  owner.bench.service.run_tasks();
  REQUIRE(kept.size() == 2);
  kept[1].token.answer(Status::fault);
  owner.bench.service.run_tasks();
  CHECK(kept.size() == 2);
  owner.expect({{1, Status::ok}, {2, Status::fault}, {3, Status::halted}});
  owner.expect({{4, Status::halted}});
  CHECK(owner.channel->buffers_out() == 0);
}

TEST_CASE("who has begun to answer goes on while others find no room to begin") {
  Owner owner({.credits = 3});
  owner.channel->keep_buffers = true;
  owner.all[1].settled = false;
  owner.ask({Owner::in_turn(1, 2)}); // it waits for its receives
  owner.ask({Owner::in_turn(2, 1), Owner::in_turn(3, 1)});
  REQUIRE(kept.size() == 1);
  owner.ask(toy_echo, 4);
  owner.ask(toy_echo, 5);
  owner.ask(toy_echo, 6);
  owner.expect({{4, Status::ok}});
  owner.expect({{5, Status::ok}});
  owner.expect({{6, Status::ok}});
  owner.all[1].settled = true;
  owner.bench.service.pass(10ms);
  CHECK(kept.size() == 1); // all messages are under way, or being filled
  kept[0].token.answer(Status::ok);
  owner.bench.service.run_tasks();
  REQUIRE(kept.size() == 2);
  kept[1].token.answer(Status::ok);
  owner.expect({{2, Status::ok}, {3, Status::ok}});
  owner.channel->complete();
  REQUIRE(kept.size() == 3);
  CHECK(kept[2].request == 1);
}

TEST_CASE("a peer keeps as many buffers as it has credits, and loses its link by one more") {
  Owner owner({.credits = 2});
  owner.all[1].settled = false;
  owner.ask({Owner::in_turn(1, 1)}); // it waits for its receives
  for (uint64_t request = 10; request < 30; ++request) {
    owner.ask(toy_echo, request); // who is answered may ask again
    owner.expect({{request, Status::ok}});
  }
  owner.ask({Owner::in_turn(2, 1)});
  CHECK_FALSE(owner.channel->down());
  owner.ask({Owner::in_turn(3, 1)});
  CHECK(owner.channel->down());
}

TEST_CASE("requests that do not wait for each other share no message") {
  const auto bad = GENERATE(0, 1, 2, 3);
  Owner owner;
  auto other = Owner::in_turn(2, 1);
  if (bad == 0)
    other.target = 2;
  else if (bad == 1)
    other.source = 78;
  else if (bad == 2)
    other.kind = static_cast<uint8_t>(Kind::query);
  else
    other.version = 3; // not known
  owner.ask({Owner::in_turn(1, 1), other});
  CHECK(owner.channel->down());
  CHECK(kept.empty());
}

TEST_CASE("a link that ends takes the rest of a message with it") {
  Owner owner;
  owner.ask({Owner::in_turn(1, 1), Owner::in_turn(2, 1)});
  owner.channel->end();
  kept[0].token.answer(Status::ok);
  owner.bench.service.run_tasks();
  CHECK(kept.size() == 1);
  CHECK(owner.channel->buffers_out() == 0);
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
    const auto parsed = only_reply(message);
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

// By what links may pin in all and what of that is left. Thousands of peers may come, each of whom
// has two credits at least.
TEST_CASE("messages are short where memory for them is, or has become") {
  const Owner owner;
  const auto size = [&](uint64_t budget, uint64_t left) {
    return owner.protocol->size(budget, left).message;
  };
  constexpr uint64_t mib = 1 << 20;
  CHECK(size(8 * mib, 8 * mib) > 64 * 1024);
  CHECK(size(8 * mib, mib) > 64 * 1024);
  const size_t least = size(8 * mib, mib - 1);
  CHECK(least < 5 * 1024);
  CHECK(size(8 * mib, 0) == least);
  CHECK(size(4 * mib - 1, 4 * mib - 1) == least);
  CHECK(owner.protocol->size(8 * mib, 0).depth >= 2);
}
