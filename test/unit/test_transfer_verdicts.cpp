// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What is known of a peer's keys, as posts read it while replies write it.
#include "catch.h"
#include "transfer/verdicts.h"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

using adverb::steering::KeyVerdict;
using adverb::transfer::Verdicts;
using Kind = KeyVerdict::Kind;

TEST_CASE(
    "a key nobody told of is unknown, one that was told has its verdict until it is forgotten") {
  Verdicts verdicts;
  CHECK_FALSE(verdicts.find(0).known());
  CHECK_FALSE(verdicts.find(7).known());
  verdicts.learn(7, Kind::virtual_key);
  verdicts.learn(0, Kind::real);
  CHECK(verdicts.find(7).kind == Kind::virtual_key);
  CHECK(verdicts.find(0).kind == Kind::real);
  CHECK_FALSE(verdicts.find(8).known());
  verdicts.forget(7);
  verdicts.forget(8);
  CHECK_FALSE(verdicts.find(7).known());
  CHECK(verdicts.find(7).epoch == 0);
  CHECK(verdicts.find(0).kind == Kind::real);
}

TEST_CASE("that keys are the device's is forgotten for all of them, and what is virtual stays") {
  Verdicts verdicts;
  for (uint32_t key = 1; key <= 100; ++key)
    verdicts.learn(key, key % 2 == 0 ? Kind::real : Kind::virtual_key);
  const uint32_t before = verdicts.changes();
  verdicts.forget_real();
  CHECK(verdicts.changes() != before); // who keeps one asks anew
  for (uint32_t key = 1; key <= 100; ++key)
    CHECK(verdicts.find(key).known() == (key % 2 != 0));
}

TEST_CASE("an epoch names one verdict on one key: what was forgotten and told again is another") {
  Verdicts verdicts;
  std::set<uint32_t> epochs;
  for (uint32_t key = 1; key <= 100; ++key) {
    verdicts.learn(key, Kind::virtual_key);
    CHECK(epochs.insert(verdicts.find(key).epoch).second);
  }
  const auto before = verdicts.find(50);
  verdicts.learn(50, Kind::virtual_key);
  CHECK(verdicts.find(50).epoch == before.epoch); // nothing new
  verdicts.learn(50, Kind::real);
  CHECK(epochs.insert(verdicts.find(50).epoch).second);
  verdicts.forget(50);
  verdicts.learn(50, Kind::virtual_key);
  CHECK(epochs.insert(verdicts.find(50).epoch).second);
}

TEST_CASE("a table that is full forgets verdicts and never gives a wrong one") {
  Verdicts verdicts;
  constexpr uint32_t keys = 3 * Verdicts::slots_max;
  for (uint32_t key = 0; key < keys; ++key)
    verdicts.learn(key * 256, key % 2 == 0 ? Kind::real : Kind::virtual_key);
  uint32_t known = 0;
  for (uint32_t key = 0; key < keys; ++key) {
    const auto verdict = verdicts.find(key * 256);
    if (!verdict.known())
      continue;
    ++known;
    REQUIRE(verdict.kind == (key % 2 == 0 ? Kind::real : Kind::virtual_key));
  }
  CHECK(known <= Verdicts::slots_max);
  CHECK(known >= Verdicts::slots_max / 2);
  CHECK(verdicts.find((keys - 1) * 256).known()); // the newest is not the one that went
}

TEST_CASE("readers see a verdict whole while others learn and forget") {
  Verdicts verdicts;
  // Far more keys than slots, so that slots change hands; a key's kind never changes.
  constexpr uint32_t keys = 4 * Verdicts::slots_max;
  const auto kind_of = [](uint32_t key) { return key % 3 == 0 ? Kind::real : Kind::virtual_key; };
  std::atomic<bool> stop{false};
  std::atomic<bool> wrong{false};
  std::vector<std::thread> readers;
  for (uint32_t r = 0; r < 2; ++r)
    readers.emplace_back([&, r] {
      for (uint32_t key = r; !stop; key = (key * 5 + 1) % keys) {
        const auto verdict = verdicts.find(key);
        if (verdict.known() ? verdict.kind != kind_of(key) || verdict.epoch == 0
                            : verdict.epoch != 0)
          wrong = true;
      }
    });
  std::vector<std::thread> writers;
  for (uint32_t w = 0; w < 2; ++w)
    writers.emplace_back([&, w] {
      for (uint32_t round = 0; round < 200000; ++round) {
        const uint32_t key = (round * 7919 + w) % keys;
        verdicts.learn(key, kind_of(key));
        if (round % 3 == 0)
          verdicts.forget((key * 13) % keys);
      }
    });
  for (auto& writer : writers)
    writer.join();
  stop = true;
  for (auto& reader : readers)
    reader.join();
  CHECK_FALSE(wrong);
}

TEST_CASE("of keys that were served under one that has ended it is not known any more") {
  Verdicts verdicts;
  verdicts.learn(1, Kind::real, 100);
  verdicts.learn(2, Kind::real, 200);
  verdicts.learn(3, Kind::real, KeyVerdict::none);
  verdicts.learn(4, Kind::virtual_key);
  const uint32_t before = verdicts.find(1).epoch;
  CHECK(verdicts.find(1).is_served());
  CHECK_FALSE(verdicts.find(3).is_served());
  // What is said of the key alone leaves that as it is.
  verdicts.learn(1, Kind::real);
  CHECK(verdicts.find(1).served == 100);
  const uint32_t ended[] = {100, 4};
  CHECK(verdicts.forget_served(ended) == std::vector<uint32_t>{1});
  CHECK(verdicts.find(1).kind == Kind::real);
  CHECK(verdicts.find(1).served == KeyVerdict::not_asked);
  CHECK(verdicts.find(1).epoch != before);
  CHECK(verdicts.find(2).served == 200);
  CHECK(verdicts.find(3).served == KeyVerdict::none);
  CHECK(verdicts.find(4).kind == Kind::virtual_key);
}
