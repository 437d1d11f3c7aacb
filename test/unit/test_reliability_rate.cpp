// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// gate: yes
// The controller of the rate on a path of one bottleneck with an endless queue, under a virtual
// clock.
#include "reliability/rate.h"

#include "catch.h"

#include <algorithm>
#include <deque>
#include <utility>

using adverb::reliability::Rate;
using adverb::reliability::RateOptions;
using adverb::reliability::Time;

namespace {

using namespace std::chrono_literals;

constexpr Time step = 50us;
constexpr double packet_bytes = 1024;

double seconds(Time t) {
  return std::chrono::duration<double>(t).count();
}

// Packets are a fluid. A report comes four times in a round trip, and says how many arrived.
struct Path {
  double bytes_per_second;
  Time round_trip; // without a queue
  Rate rate{RateOptions{.packet_bytes = 1024}};
  Time now{0};
  double queue = 0;
  double arrived = 0;
  double on_path = 0; // behind the queue, with the reports of it
  std::deque<std::pair<Time, double>> leaves{};
  Time reported{0};
  double offered = 1e18; // bytes per second that there are to send

  Time trip() const {
    return round_trip + Time(static_cast<int64_t>(queue / bytes_per_second * 1e9));
  }
  void run(Time how_long) {
    for (const Time end = now + how_long; now < end; now += step) {
      const double window =
          rate.window() == UINT64_MAX ? 1e18 : static_cast<double>(rate.window()) * packet_bytes;
      const double wanted = std::min(rate.bytes_per_second(), offered) * seconds(step);
      if (offered < rate.bytes_per_second())
        rate.on_idle();
      queue += std::min(wanted, std::max(0.0, window - queue - on_path));
      const double out = std::min(queue, bytes_per_second * seconds(step));
      queue -= out;
      on_path += out;
      leaves.emplace_back(now + round_trip, out);
      for (; leaves.front().first <= now; leaves.pop_front()) {
        on_path -= leaves.front().second;
        arrived += leaves.front().second;
      }
      if (now - reported < std::max(trip() / 4, step))
        continue;
      reported = now;
      const auto packets = static_cast<uint64_t>(arrived / packet_bytes);
      arrived -= static_cast<double>(packets) * packet_bytes;
      rate.on_feedback(now, trip(), packets, 0, 0);
    }
  }
  double use() const { return rate.bytes_per_second() / bytes_per_second; }
};

} // namespace

TEST_CASE("the rate finds the bottleneck and keeps its queue short") {
  for (const Time round_trip : {Time(300us), Time(2ms), Time(25ms), Time(100ms)}) {
    CAPTURE(round_trip.count());
    Path path{20e6, round_trip};
    path.run(std::max<Time>(2s, 60 * round_trip));
    double least = 10;
    double most = 0;
    Time longest{0};
    for (int i = 0; i < 40; ++i) {
      path.run(round_trip);
      least = std::min(least, path.use());
      most = std::max(most, path.use());
      longest = std::max(longest, path.trip());
    }
    CHECK(least > 0.4);
    CHECK(most < 1.6);
    CHECK(longest < 3 * round_trip + 2ms);
  }
}

TEST_CASE("a round trip that has become longer for good is no queue") {
  Path path{5e6, 200us};
  path.run(100ms);
  for (const Time round_trip : {Time(4ms), Time(20ms), Time(60ms)}) {
    CAPTURE(round_trip.count());
    path.round_trip = round_trip;
    path.run(100 * round_trip);
    CHECK(path.use() > 0.4);
  }
}

TEST_CASE("after a time of many losses the rate is soon what it was") {
  for (const Time round_trip : {Time(2ms), Time(25ms), Time(100ms)}) {
    CAPTURE(round_trip.count());
    Path path{20e6, round_trip};
    path.run(60 * round_trip);
    for (int round = 0; round < 20; ++round) {
      path.now += round_trip;
      path.rate.on_feedback(path.now, round_trip, 100, 100, 0);
    }
    CHECK(path.use() < 0.05);
    path.run(40 * round_trip);
    CHECK(path.use() > 0.4);
    CHECK(path.use() < 1.6);
  }
}

// As a link is used before a program begins: a few packets each round trip.
TEST_CASE("what there was not to send says nothing of the path") {
  for (const Time round_trip : {Time(300us), Time(25ms), Time(100ms)}) {
    for (const double offered : {0.002, 0.05}) {
      CAPTURE(round_trip.count(), offered);
      Path path{20e6, round_trip};
      path.offered = offered * path.bytes_per_second;
      path.run(50 * round_trip);
      path.offered = 1e18;
      path.run(40 * round_trip);
      CHECK(path.use() > 0.4);
      // And again: a pause is no reason to begin anew.
      path.offered = offered * path.bytes_per_second;
      path.run(50 * round_trip);
      CHECK(path.use() > 0.4);
      CHECK(path.use() < 1.6);
    }
  }
}

// One packet of two is half of a round, and 5 % of twenty rounds.
TEST_CASE("losses of few packets are judged together") {
  Rate rate(RateOptions{.packet_bytes = 1024});
  Time now{0};
  rate.on_feedback(now, 100ms, 1, 0, 0);
  const double before = rate.bytes_per_second();
  for (int round = 0; round < 400; ++round) {
    now += 100ms;
    rate.on_idle();
    rate.on_feedback(now, 100ms, 2, round % 20 == 0 ? 1 : 0, 0);
  }
  CHECK(rate.bytes_per_second() >= before);
  for (int round = 0; round < 400; ++round) { // and half of all is too much
    now += 100ms;
    rate.on_idle();
    rate.on_feedback(now, 100ms, 1, 1, 0);
  }
  CHECK(rate.bytes_per_second() < before);
}

TEST_CASE("a rate that was named is kept") {
  Rate rate(RateOptions{.bytes_per_second = 7e6});
  rate.on_feedback(1s, 1ms, 10, 90, 0);
  rate.on_feedback(2s, 100ms, 10, 90, 0);
  CHECK(rate.bytes_per_second() == 7e6);
  CHECK(rate.window() == UINT64_MAX);
}
