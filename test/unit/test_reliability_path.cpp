// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a party learns of its path, by soundings and by numbered reports, and how it spreads packets
// over time.
#include "reliability_link.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

using namespace reliability_test;

namespace {

PartyOptions small_packets() {
  PartyOptions options;
  options.cut = {1024, 1024};
  return options;
}

// Two parties of which the left one has sent a message, and so knows how many packets may come.
// Behind it a second receive stays posted.
struct Met {
  explicit Met(const Faults& faults = {}) : pair(small_packets(), faults, 10ms, 7) {
    REQUIRE(pair.left->send(source.data(), source.size(), {}, 0) ==
            pair.right->receive(target.data(), target.size()));
    pair.right->receive(target.data(), target.size());
    while (!pair.left->take_send_event() && pair.step())
      ;
  }
  Buffer source{4096}, target{4096};
  Pair pair;
};

// Sounds the path so often, 50 ms apart, by so many probes each time.
void sound(Pair& pair, int times, uint32_t probes) {
  for (int i = 0; i < times; ++i) {
    pair.left->sender().sound(probes);
    const Time until = pair.now + 50ms;
    while (pair.step(until))
      ;
    pair.now = until;
  }
}

// What it takes to send 4 MiB at a rate over a path of 52 ms, if each wake-up comes so late.
struct Paced {
  explicit Paced(double bytes_per_second, Time late = 0ns) {
    PartyOptions options;
    options.cut = {4096, 4096};
    options.rate.bytes_per_second = bytes_per_second;
    options.receives = 1 << 16;
    Pair pair(options, {}, 26ms, 7);
    Buffer source(4 << 20), target(4 << 20);
    pair.left->send(source.data(), 4096, {}, 0); // tells of the round trip
    pair.right->receive(target.data(), 4096);
    while (!pair.left->take_send_event())
      REQUIRE(pair.step());
    const Time begun = pair.now;
    pair.left->send(source.data(), source.size(), {}, 1);
    pair.right->receive(target.data(), target.size());
    for (uint64_t before = pair.there.sent; !pair.left->take_send_event();) {
      REQUIRE(pair.step());
      pair.now += late;
      const uint64_t sent = pair.there.sent - std::exchange(before, pair.there.sent);
      bursts += sent != 0 ? 1 : 0;
      longest = std::max(longest, sent);
    }
    took = pair.now - begun;
  }
  Time took{0};
  uint64_t bursts = 0;
  uint64_t longest = 0; // packets
};

} // namespace

TEST_CASE("soundings tell of round trip and loss while there is nothing to send") {
  for (const double loss : {0.0, 0.01, 0.05}) {
    INFO(loss);
    Faults faults;
    faults.loss = loss;
    Met met(faults);
    Pair& pair = met.pair;
    const auto& sender = pair.left->sender();
    const double rate = sender.rate().bytes_per_second();
    const uint64_t packets = sender.stats().packets;
    const uint64_t probes = sender.stats().probes;
    CHECK(sender.rate().smoothed_round_trip() < 25ms);
    pair.there.set_delay(30ms); // another route
    sound(pair, 500, 16);
    CHECK(sender.stats().probes == probes + 500 * 16);
    CHECK(sender.stats().packets == packets);
    CHECK(sender.rate().smoothed_round_trip() >= 39ms);
    CHECK(sender.rate().smoothed_round_trip() < 45ms);
    CHECK(sender.rate().loss() >= loss * 0.5);
    CHECK(sender.rate().loss() <= loss * 1.5);
    CHECK(sender.rate().bytes_per_second() == rate); // they say nothing of it
    REQUIRE(pair.right->take_receive_event());       // of the message
    CHECK_FALSE(pair.right->take_receive_event());
  }
}

TEST_CASE("what is lost on the way back shows in the reports that arrive") {
  for (const double loss : {0.0, 0.02, 0.1}) {
    INFO(loss);
    Met met;
    Pair& pair = met.pair;
    pair.back.set_loss(loss);
    const uint64_t before = pair.back.sent;
    for (int i = 0; i < 2000; ++i) {
      sound(pair, 1, 4);
      pair.left->loss_here();
    }
    CHECK(pair.back.sent - before >= 2000);
    CHECK(pair.left->loss_here() >= loss * 0.5);
    CHECK(pair.left->loss_here() <= loss * 1.5);
    CHECK(pair.left->sender().rate().loss() == 0);
    CHECK(pair.right->loss_here() == 0);
  }
}

TEST_CASE("reports to an end that was not connected yet are no losses of the path") {
  Pair pair(small_packets(), {}, 10ms, 7);
  Buffer source(4096), target(4096);
  pair.back.cut = true;
  for (int i = 0; i < 20; ++i) {
    pair.right->receive(target.data(), target.size());
    pair.step();
  }
  CHECK(pair.back.sent >= 2);
  CHECK(pair.left->loss_here() == 0); // nothing has come
  pair.back.cut = false;
  pair.left->send(source.data(), source.size(), {}, 0);
  while (!pair.left->take_send_event() && pair.step())
    ;
  CHECK(pair.left->loss_here() == 0);
  sound(pair, 100, 4);
  CHECK(pair.left->loss_here() == 0);
}

TEST_CASE("nothing is sounded while a message is open, or where there is no credit") {
  Pair pair(small_packets(), {}, 10ms, 7);
  std::vector<std::byte> packet(sizeof(wire::Header) + 1024);
  pair.left->sender().sound(16); // nothing is known of the other side
  CHECK(pair.left->next_packet(packet, pair.now) == 0);
  CHECK(pair.left->wake(pair.now) == Time::max());
  Buffer source(64 * 1024), target(64 * 1024);
  pair.left->send(source.data(), source.size(), {}, 0);
  pair.right->receive(target.data(), target.size());
  for (int i = 0; i < 3; ++i)
    pair.step();
  const uint64_t probes = pair.left->sender().stats().probes;
  pair.left->sender().sound(1000);
  CHECK(pair.left->next_packet(packet, pair.now) != 0);
  CHECK(pair.left->sender().stats().probes < probes + 2);
}

TEST_CASE("packets are paced by bursts, and a thread that wakes late catches up") {
  const Paced punctual(1e7);
  CHECK(punctual.took >= 400ms);
  CHECK(punctual.took < 500ms);  // 419 ms and a round trip
  CHECK(punctual.longest <= 40); // what had been saved at the start, 3.25 ms and a run
  const Paced late(1e7, 4ms);
  CHECK(late.took < punctual.took + 50ms);
  const Paced fast(1e8);
  CHECK(fast.bursts < 1024 / 40); // of 3.25 ms, which is 79 packets
  CHECK(fast.took >= 40ms + 52ms - 7ms);
}
