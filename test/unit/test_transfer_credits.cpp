// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Whose the credits of a link are: a queue pair whose requests are not answered for long leaves
// some to others.
#include "catch.h"
#include "fake_channel.h"
#include "test_world.h"
#include "transfer/initiator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

using namespace adverb;
using namespace adverb::test;

namespace {

struct QueuePair final : transfer::Source {
  void on_replies(std::span<const std::byte>) override {}
  void on_credit() override { ++asked; }
  void on_keys_ended(std::span<const uint32_t>) override {}
  void on_down() override {}
  int asked = 0;
};

struct Sharing {
  explicit Sharing(uint64_t queue_pairs) {
    for (uint64_t handle = 1; handle <= queue_pairs; ++handle)
      initiator->attach(handle, &all[handle]);
  }
  // How many more messages it may have under way.
  uint32_t begin_all(uint64_t handle) {
    uint32_t begun = 0;
    for (std::byte* message; (message = initiator->begin(handle)) != nullptr; ++begun)
      channel->abandon(message); // sent, and reported
    return begun;
  }
  // One of its messages is answered.
  void answer(uint64_t handle) {
    transfer::ReplyHeader reply{};
    reply.kind = static_cast<uint8_t>(transfer::Kind::write);
    reply.source = handle;
    std::array<std::byte, sizeof reply> message;
    memcpy(message.data(), &reply, sizeof reply);
    const std::lock_guard hold(progress.lock());
    initiator->on_message({pool, 0, message});
  }

  struct Pool final : link::RxBuffer::Pool {
    void take_back(uint32_t) noexcept override {}
  } pool;
  world_test::Bench bench;
  FakeProgress progress;
  std::shared_ptr<FakeChannel> channel = std::make_shared<FakeChannel>(
      progress, link::Channel::Role::client, FakeChannel::Size{.credits = 8});
  std::shared_ptr<transfer::Initiator> initiator =
      std::make_shared<transfer::Initiator>(bench.world, channel);
  std::array<QueuePair, 16> all;
};

} // namespace

TEST_CASE("a queue pair that is alone leaves one credit to who may come") {
  Sharing link(1);
  CHECK(link.begin_all(1) == 7);
  link.initiator->attach(2, &link.all[2]);
  CHECK(link.begin_all(2) == 1);
  link.answer(2);
  CHECK(link.all[2].asked == 1); // it waited for more
  CHECK(link.begin_all(2) == 1);
}

TEST_CASE("what nobody waits for takes the last credit, too, and does not wait for another") {
  Sharing link(1);
  CHECK(link.begin_all(1) == 7);
  std::byte* const message = link.initiator->begin_aside(1);
  REQUIRE(message != nullptr);
  link.channel->abandon(message);
  CHECK(link.initiator->begin_aside(1) == nullptr);
  link.answer(1);
  link.all[1].asked = 0;
  CHECK(link.begin_all(1) == 0); // which is what it waits for
  link.answer(1);
  CHECK(link.all[1].asked == 1);
  CHECK(link.begin_all(1) == 1);
}

TEST_CASE("queue pairs that get no answer have one credit each") {
  Sharing link(10);
  for (uint64_t handle = 1; handle <= 8; ++handle)
    CHECK(link.begin_all(handle) == 1);
  CHECK(link.begin_all(9) == 0);
  link.answer(3);
  CHECK(link.begin_all(9) == 1);
}

TEST_CASE("a stream of messages comes to have half of the credits, and begins anew after a pause") {
  Sharing link(3);
  uint32_t under_way = link.begin_all(1);
  CHECK(under_way == 1);
  for (uint32_t answers = 0; answers < 20; ++answers) {
    link.answer(1);
    under_way += link.begin_all(1) - 1;
    CHECK(under_way == std::min(answers + 2, 4U));
  }
  CHECK(link.begin_all(2) == 1);
  CHECK(link.begin_all(3) == 1);
  for (; under_way != 0; --under_way)
    link.answer(1);
  link.initiator->begin(1); // it had asked for more, and that was all
  link.answer(1);
  CHECK(link.begin_all(1) == 1);
}
