// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a completion queue is made of, each part for itself.
#include "model/drain_pace.h"
#include "model/failed_qps.h"
#include "model/marker_slots.h"
#include "model/ready_ring.h"

#include "catch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>

using namespace adverb::model;
using adverb::steering::Completion;
using namespace std::chrono_literals;

TEST_CASE("a ring of completions is a list, over its ends and as it grows") {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    ReadyRing ring(seed % 5);
    std::deque<ibv_wc> list;
    for (uint64_t step = 0; step < 500; ++step) {
      const auto qpn = static_cast<uint32_t>(random() % 3);
      switch (random() % 8) {
      case 0: {
        std::array<ibv_wc, 4> some{};
        const size_t room = random() % 5;
        const size_t came = ring.take(std::span(some).first(room));
        REQUIRE(came == std::min(room, list.size()));
        for (size_t i = 0; i < came; ++i) {
          REQUIRE(some[i].wr_id == list.front().wr_id);
          list.pop_front();
        }
        break;
      }
      case 1: {
        Completion completion;
        REQUIRE(ring.take(completion) == !list.empty());
        if (!list.empty()) {
          REQUIRE(completion.wc.wr_id == list.front().wr_id);
          list.pop_front();
        }
        break;
      }
      case 2:
        REQUIRE(ring.has(qpn) == (std::ranges::count(list, qpn, &ibv_wc::qp_num) != 0));
        ring.remove(qpn);
        std::erase_if(list, [qpn](const ibv_wc& wc) { return wc.qp_num == qpn; });
        break;
      default: {
        Completion completion;
        completion.wc.wr_id = step;
        completion.wc.qp_num = qpn;
        ring.append(completion);
        list.push_back(completion.wc);
      }
      }
      REQUIRE(ring.size() == list.size());
      REQUIRE(ring.empty() == list.empty());
    }
  }
}

TEST_CASE("markers have as many slots as there are, and are waited for in order, once each") {
  MarkerSlots slots;
  slots.resize(2);
  CHECK(slots.take(1));
  CHECK(slots.take(2));
  CHECK(!slots.any_waits());
  CHECK(!slots.take(3));
  CHECK(!slots.take(4));
  CHECK(!slots.take(3)); // in line already
  CHECK(slots.any_waits());
  CHECK(!slots.next()); // there is no slot
  slots.give_back();
  CHECK(slots.next() == 3U);
  CHECK(slots.next() == 4U); // the slot is free until it is taken
  CHECK(!slots.any_waits());
  CHECK(!slots.next());
  CHECK(slots.take(4));
  CHECK(!slots.take(3));
  slots.resize(3);
  CHECK(slots.next() == 3U);
  CHECK(slots.take(3));
  slots.resize(1); // those that are out stay so
  for (int i = 0; i < 3; ++i) {
    CHECK(!slots.take(5));
    slots.give_back();
  }
  CHECK(slots.take(5));
}

TEST_CASE("adverb's own polls of a queue have one timer, and pause ever longer") {
  DrainPace pace;
  CHECK(pace.want());
  CHECK(!pace.want()); // it runs
  CHECK(pace.due());
  CHECK(pace.want());
  CHECK(pace.due());
  CHECK(!pace.due()); // nothing was wanted since
  CHECK(pace.pause() == 200us);
  pace.slow_down();
  CHECK(pace.pause() == 400us);
  for (int i = 0; i < 100; ++i)
    pace.slow_down();
  CHECK(pace.pause() == 3200us);
  pace.reset();
  CHECK(pace.pause() == 200us);
}

TEST_CASE("queue pairs that have failed are waited for, those that fail meanwhile once more") {
  FailedQps failed;
  CHECK(!failed.any());
  failed.add(7);
  failed.add(7);
  CHECK(failed.any());
  const auto one = failed.seen();
  CHECK(one.handle == 7);
  failed.add(7); // while it is waited for
  failed.settled(one);
  CHECK(failed.any());
  failed.add(9);
  const auto several = failed.seen();
  CHECK(several.handle == 0); // all
  failed.settled(several);
  CHECK(!failed.any());
  failed.add(9);
  CHECK(failed.seen().handle == 9);
}
