// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A virtual key is not used again before every peer that was told of it has forgotten it, or is
// gone.
#include "catch.h"
#include "fake_channel.h"
#include "fake_provider.h"
#include "key_with.h"
#include "policy/policy.h"
#include "test_world.h"
#include "transfer/initiator.h"
#include "transfer/messages.h"
#include "transfer/told_keys.h"

#include <algorithm>
#include <array>
#include <vector>

using namespace adverb;
using namespace adverb::test;
using namespace std::chrono_literals;
using registration::FreeKeys;
using registration::Key;
using transfer::KeyEnds;
using transfer::NoticeHeader;
using transfer::ToldKeys;
using Kind = steering::KeyVerdict::Kind;

namespace {

// The owner's side of one channel, and the pool its keys go back to.
struct Owner {
  explicit Owner(const FakeChannel::Size& size = {.message_max = 256})
      : channel(std::make_shared<FakeChannel>(progress, link::Channel::Role::server, size)),
        told(std::make_shared<ToldKeys>(bench.world, ends, channel)) {}
  ~Owner() { die(); }

  // A region is registered under the key, a peer told of it, and the region deregistered.
  void told_and_ended(uint32_t value) {
    const auto key = key_with(pool, value);
    tell(key);
    ends.ended(key);
  }
  void tell(const std::shared_ptr<Key>& key) {
    const std::lock_guard hold(progress.lock());
    told->hold(key);
  }
  bool acknowledge(uint32_t number) {
    const std::lock_guard hold(progress.lock());
    if (!told->awaits(number))
      return false;
    told->acknowledged(number);
    return true;
  }
  // The keys of the notice sent next; its number in `number`.
  std::vector<uint32_t> notice() {
    const auto message = channel->take();
    const auto parsed = transfer::parse_notice(message);
    if (!parsed)
      return {};
    number = parsed->header.number;
    std::vector<uint32_t> keys(parsed->header.count);
    memcpy(keys.data(), parsed->payload.data(), parsed->payload.size());
    return keys;
  }
  void die() {
    const std::lock_guard hold(progress.lock());
    told->close();
  }
  bool is_free(uint32_t value) const { return std::ranges::count(pool->keys, value) == 1; }

  world_test::Bench bench;
  FakeProgress progress;
  KeyEnds ends;
  std::shared_ptr<FreeKeys> pool = std::make_shared<FreeKeys>();
  std::shared_ptr<FakeChannel> channel;
  std::shared_ptr<ToldKeys> told;
  uint32_t number = 0;
};

using Keys = std::vector<uint32_t>;

} // namespace

TEST_CASE("a key nobody was told of is free at once") {
  Owner owner;
  auto key = key_with(owner.pool, 7);
  owner.ends.ended(key);
  key.reset();
  CHECK(owner.is_free(7));
  CHECK(owner.channel->sent() == 0);
}

TEST_CASE("a key that was told is free when the peer has acknowledged its end, not before") {
  Owner owner;
  owner.told_and_ended(7);
  CHECK(owner.notice() == Keys{7});
  CHECK(owner.pool->keys.empty());
  CHECK_FALSE(owner.acknowledge(owner.number + 1));
  CHECK(owner.pool->keys.empty());
  CHECK(owner.acknowledge(owner.number));
  CHECK(owner.is_free(7));
  CHECK_FALSE(owner.acknowledge(owner.number)); // once
  owner.bench.service.pass(120s);
  CHECK_FALSE(owner.channel->down());
}

TEST_CASE("every channel that told of it holds a key") {
  Owner one;
  Owner other;
  const auto other_told = std::make_shared<ToldKeys>(other.bench.world, one.ends, other.channel);
  other.told = other_told;
  auto key = key_with(one.pool, 7);
  one.tell(key);
  other.tell(key);
  one.ends.ended(key);
  key.reset();
  CHECK(one.notice() == Keys{7});
  CHECK(other.notice() == Keys{7});
  CHECK(one.acknowledge(one.number));
  CHECK(one.pool->keys.empty());
  SECTION("until it acknowledges") {
    CHECK(other.acknowledge(other.number));
  }
  SECTION("or is gone") {
    other.die();
  }
  CHECK(one.is_free(7));
}

TEST_CASE("one notice is out at a time, and the next has all that ended meanwhile") {
  Owner owner;
  for (const uint32_t key : {1, 2, 3, 4})
    owner.told_and_ended(key);
  CHECK(owner.notice() == Keys{1});
  CHECK(owner.channel->sent() == 0);
  CHECK(owner.acknowledge(owner.number));
  CHECK(owner.notice() == Keys{2, 3, 4});
  CHECK(owner.pool->keys.size() == 1);
  CHECK(owner.acknowledge(owner.number));
  CHECK(owner.pool->keys.size() == 4);
  CHECK(owner.channel->sent() == 0);
}

TEST_CASE("a notice waits for room, and is not longer than a message") {
  Owner owner({.credits = 1, .message_max = 256});
  std::byte* first = owner.channel->acquire();
  std::byte* second = owner.channel->acquire();
  for (uint32_t key = 1; key <= 100; ++key)
    owner.told_and_ended(key);
  CHECK(owner.channel->sent() == 0);
  owner.channel->abandon(first);
  owner.channel->abandon(second);
  {
    const std::lock_guard hold(owner.progress.lock());
    owner.told->on_tx_free();
  }
  size_t all = 0;
  for (auto keys = owner.notice(); !keys.empty(); keys = owner.notice()) {
    all += keys.size();
    CHECK(sizeof(NoticeHeader) + keys.size() * sizeof(uint32_t) <= 256);
    CHECK(owner.acknowledge(owner.number));
  }
  CHECK(all == 100);
  CHECK(owner.pool->keys.size() == 100);
}

// Such a peer is stopped, or busy; its traffic has nothing to do with keys that end.
TEST_CASE("a peer that does not acknowledge, and asks nothing, costs its keys and no more") {
  Owner owner;
  for (uint32_t key = 1; key <= 3 * ToldKeys::told_max; ++key)
    owner.told_and_ended(key);
  owner.bench.service.pass(3600s);
  CHECK_FALSE(owner.channel->down());
  CHECK(owner.pool->keys.empty());
  for (auto keys = owner.notice(); !keys.empty(); keys = owner.notice())
    CHECK(owner.acknowledge(owner.number));
  CHECK(owner.pool->keys.size() == 3 * ToldKeys::told_max);
}

TEST_CASE("a peer that asks of ever more keys and never acknowledges is cut off") {
  Owner owner;
  owner.told_and_ended(1);
  uint32_t next = 2;
  const auto ask = [&](size_t times) {
    for (; times != 0; --times)
      owner.tell(key_with(owner.pool, next++));
  };
  ask(2 * ToldKeys::told_max);
  CHECK_FALSE(owner.channel->down()); // within the minute it may be behind
  owner.bench.service.pass(61s);
  SECTION("and has not") {
    ask(1);
    CHECK(owner.channel->down());
    CHECK(owner.bench.lines.said.size() == 1);
    owner.die();
    CHECK(owner.is_free(1));
  }
  SECTION("and has at last") {
    CHECK(owner.acknowledge(1));
    ask(2 * ToldKeys::told_max);
    CHECK_FALSE(owner.channel->down());
  }
}

TEST_CASE("a peer that dies lets go of all") {
  Owner owner;
  const auto alive = key_with(owner.pool, 9);
  owner.tell(alive);
  owner.told_and_ended(7);
  owner.told_and_ended(8);
  owner.die();
  CHECK(owner.is_free(7));
  CHECK(owner.is_free(8));
  owner.ends.ended(alive); // nobody left to be told
  owner.bench.service.pass(120s);
  CHECK(owner.channel->sent() == 1);
}

TEST_CASE("an initiator forgets what it knew of a key before it acknowledges, and waits for room") {
  world_test::Bench bench;
  FakeProgress progress;
  const auto channel = std::make_shared<FakeChannel>(progress, link::Channel::Role::client,
                                                     FakeChannel::Size{.credits = 1});
  struct Only final : link::Protocol {
    uint8_t id() const noexcept override { return 0; }
    uint8_t version() const noexcept override { return 1; }
    Size size(uint64_t, uint64_t) const noexcept override { return {}; }
    std::shared_ptr<link::ChannelUser> open(const std::shared_ptr<link::Channel>&) override {
      return user;
    }
    std::shared_ptr<link::ChannelUser> user;
  } protocol;
  const auto initiator = std::make_shared<transfer::Initiator>(bench.world, channel);
  protocol.user = initiator;
  channel->open(protocol);
  for (const uint32_t key : {7, 8, 9})
    initiator->learn(key, Kind::virtual_key);
  const auto epoch = initiator->key(8).epoch;

  const auto notice = [](uint32_t number, const Keys& keys) {
    NoticeHeader h{};
    h.kind = transfer::notice_kind;
    h.count = static_cast<uint16_t>(keys.size());
    h.number = number;
    std::vector<std::byte> message(sizeof h + keys.size() * sizeof(uint32_t));
    memcpy(message.data(), &h, sizeof h);
    memcpy(message.data() + sizeof h, keys.data(), keys.size() * sizeof(uint32_t));
    return message;
  };
  channel->keep_buffers = true;
  std::byte* taken = channel->acquire();
  std::byte* also = channel->acquire();
  channel->receive(notice(5, {7, 9, 1234}));
  CHECK_FALSE(initiator->key(7).known());
  CHECK_FALSE(initiator->key(9).known());
  CHECK(initiator->key(8).epoch == epoch);
  CHECK(channel->sent() == 0);
  (void)taken;
  (void)also;
  channel->complete();
  const auto message = channel->take();
  const auto answer = transfer::parse_notice(message);
  REQUIRE(answer);
  CHECK(answer->header.number == 5);
  CHECK(answer->header.count == 0);
  CHECK_FALSE(channel->down());

  SECTION("one it cannot read ends the link") {
    auto broken = notice(6, {7, 8});
    broken.pop_back();
    channel->receive(broken);
    CHECK(channel->down());
  }
  SECTION("so does one of nothing") {
    channel->receive(notice(6, {}));
    CHECK(channel->down());
  }
  channel->end();
}

namespace {

// Regions of a device that there is none of.
struct Registered {
  ~Registered() { regions.close(); }
  ibv_mr* add() {
    const registration::Wanted wanted{&device.pd,
                                      memory.data(),
                                      memory.size(),
                                      reinterpret_cast<uintptr_t>(memory.data()),
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                                      registration::Wanted::Verb::reg_mr};
    ibv_mr* mr = nullptr;
    CHECK_FALSE(regions.add(regions.backend(*policy::find_backend("none")), wanted, mr));
    REQUIRE(mr != nullptr);
    return mr;
  }
  // Told of over the channel before its end, or not.
  uint32_t live_and_end(Owner& owner, bool tell = true) {
    ibv_mr* mr = add();
    const uint32_t key = mr->rkey;
    if (tell) {
      const std::lock_guard hold(owner.progress.lock());
      owner.told->tell(regions, key);
      owner.told->tell(regions, key);
    }
    const auto ended = regions.remove(mr);
    owner.ends.ended(ended.key);
    return key;
  }

  FakeProvider device;
  world_test::Bench bench{&FakeProvider::table()};
  registration::Regions regions{bench.world, &device.context};
  alignas(4096) std::array<std::byte, 4096> memory{};
};

} // namespace

TEST_CASE("a region gets a key that is free, not one whose end a peer has not acknowledged") {
  Registered registered;
  Owner owner;
  const uint32_t first = registered.live_and_end(owner);
  const uint32_t second = registered.live_and_end(owner, false);
  CHECK(second != first);
  CHECK(registered.live_and_end(owner, false) == second);
  CHECK(owner.notice() == Keys{first});
  CHECK(owner.acknowledge(owner.number));
  CHECK(registered.live_and_end(owner, false) == second); // oldest first
  CHECK(registered.live_and_end(owner, false) == first);
  CHECK(owner.channel->sent() == 0);
}

TEST_CASE("a key is told anew under each region, and one that names none is nobody's to hold") {
  Registered registered;
  Owner owner;
  const uint32_t key = registered.live_and_end(owner);
  CHECK(owner.notice() == Keys{key});
  {
    const std::lock_guard hold(owner.progress.lock());
    owner.told->tell(registered.regions, key); // asked of again while its end is on the way
  }
  CHECK(owner.acknowledge(owner.number));
  CHECK(registered.live_and_end(owner) == key);
  CHECK(owner.notice() == Keys{key});
}

TEST_CASE("a peer too old for notices holds no key") {
  Registered registered;
  Owner owner({.version = 0});
  const uint32_t key = registered.live_and_end(owner);
  CHECK(registered.live_and_end(owner) == key);
  CHECK(owner.channel->sent() == 0);
}

TEST_CASE("keys may be held longer than their context lives") {
  Owner owner;
  {
    Registered registered;
    registered.live_and_end(owner);
  }
  const auto keys = owner.notice();
  CHECK(keys.size() == 1);
  CHECK(owner.acknowledge(owner.number));
}
