// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which paths are worth being carried by packets, how they are sounded, and how much may be under
// way on them.
#include "link/packet_room.h"
#include "link/path_judge.h"

#include "catch.h"

using adverb::link::PathJudge;
using namespace std::chrono_literals;

TEST_CASE("packets pay where losses cost more than they do") {
  struct {
    std::chrono::nanoseconds round_trip;
    double loss;
    bool pays;
  } const paths[] = {
      {50ms, 0.01, true},  {50ms, 0.001, true},   {50ms, 0.0001, false},
      {50ms, 0, false},    {200ms, 0.0001, true}, {1ms, 0.02, true},
      {1ms, 0.005, false}, {20us, 0.3, false},    {20us, 0, false},
  };
  for (const auto& path : paths) {
    INFO(path.round_trip.count() << " ns, " << path.loss);
    PathJudge judge;
    CHECK(judge.judge(path.round_trip, path.loss) == path.pays);
    CHECK(judge.pays() == path.pays);
  }
}

TEST_CASE("what is measured has to fall by half before packets pay no more") {
  PathJudge judge;
  CHECK_FALSE(judge.judge(10ms, 0.0009));
  CHECK(judge.judge(10ms, 0.0011));
  CHECK_FALSE(judge.judge(10ms, 0.0009));
  CHECK_FALSE(judge.judge(10ms, 0.00051));
  CHECK(judge.pays());
  CHECK(judge.judge(10ms, 0.00049));
  CHECK_FALSE(judge.pays());
  CHECK_FALSE(judge.judge(10ms, 0.0009));
}

TEST_CASE("nothing is judged before a round trip was seen") {
  PathJudge judge;
  CHECK_FALSE(judge.judge(0ns, 1));
  CHECK_FALSE(judge.pays());
  CHECK(judge.next(true).packets == 64);
  CHECK(judge.next(true).packets == 16); // it may be far
}

TEST_CASE("a path is sounded while the program posts, a clean or near one more seldom") {
  PathJudge far;
  far.judge(20ms, 0.001);
  CHECK(far.next(true).packets == 64); // the first
  for (int i = 0; i < 3; ++i) {
    const auto next = far.next(true);
    CHECK(next.packets == 16);
    CHECK(next.pause == 50ms);
  }
  // It is looked less and less often whether an idle program posts again.
  for (const auto pause : {100ms, 200ms, 400ms, 800ms, 1000ms, 1000ms}) {
    const auto next = far.next(false);
    CHECK(next.packets == 0);
    CHECK(next.pause == pause);
  }
  CHECK(far.next(true).pause == 50ms);
  far.judge(20ms, 0);
  CHECK(far.next(true).packets == 16);
  CHECK(far.next(true).pause == 200ms);
  PathJudge near;
  near.next(true);
  near.judge(30us, 0);
  CHECK(near.next(true).packets == 4);
  CHECK(near.next(true).pause == 1s);
  CHECK(near.next(false).packets == 0);
  near.judge(101us, 0); // it has become longer
  CHECK(near.next(true).packets == 16);
}

TEST_CASE("what may be under way grows with staging, between what is useful and what queues hold") {
  namespace room = adverb::link::packet_room;
  constexpr uint64_t mib = 1 << 20;
  CHECK(room::messages(8 * mib) == 128);
  CHECK(room::messages(32 * mib) == 128);
  CHECK(room::messages(64 * mib) == 256);
  CHECK(room::messages(uint64_t{1} << 40) == 8192);
  CHECK(room::receives(32 * mib, 4160) == 8 * mib / 4160 - room::packets_to_send);
  CHECK(room::receives(4 * mib, 4160) == 256);
  CHECK(room::receives(2 * mib, 4160) == 0);
  CHECK(room::receives(uint64_t{1} << 40, 4160) == 32767);
  CHECK(room::under_way(32 * mib, 4096) == 1760 / 8 * 7 * uint64_t{4096});
  CHECK(room::under_way(2 * mib, 4096) == 0);
  CHECK(room::under_way(uint64_t{1} << 40, 1024) == 32767 / 8 * 7 * uint64_t{1024});
}
