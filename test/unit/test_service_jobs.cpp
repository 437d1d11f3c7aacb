// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The service is shared by parties, and none has more of it than the others.
#include "catch.h"
#include "service/jobs.h"

#include <deque>
#include <memory>
#include <vector>

using namespace adverb::service;

namespace {

struct Counted final : Job {
  Counted(std::shared_ptr<Party> whose, uint32_t bytes, int number) : number(number) {
    belongs_to(std::move(whose));
    moves(bytes);
  }
  void run() override {}
  const int number;
};

struct Many {
  Jobs jobs{16};
  std::deque<Counted> all;

  void push(const std::shared_ptr<Party>& whose, uint32_t bytes, int count, int number) {
    for (int i = 0; i < count; ++i)
      jobs.push(all.emplace_back(whose, bytes, number));
  }
  // Runs one to its end: its number; -1: none may begin.
  int next() {
    const Jobs::Begun begun = jobs.begin();
    if (begun.job == nullptr)
      return -1;
    jobs.end(begun.party);
    return static_cast<const Counted*>(begun.job)->number;
  }
};

std::shared_ptr<Party> party() {
  return std::make_shared<Party>();
}

} // namespace

TEST_CASE("jobs of one party, or of nobody, are run in the order they came", "[service]") {
  const auto whose = GENERATE(0, 1) == 0 ? nullptr : party();
  Many many;
  for (int i = 0; i < 5; ++i)
    many.push(whose, i % 2 == 0 ? 100'000 : 0, 1, i);
  for (int i = 0; i < 5; ++i)
    CHECK(many.next() == i);
  CHECK(many.jobs.empty());
  CHECK(many.next() == -1);
}

TEST_CASE("who has one job waits for one of each of the others, however many they have",
          "[service]") {
  Many many;
  const auto greedy = party();
  const auto modest = party();
  many.push(greedy, 4096, 100, 1);
  for (int i = 0; i < 3; ++i)
    many.next();
  many.push(modest, 4096, 1, 2);
  int waited = 0;
  while (many.next() != 2)
    ++waited;
  CHECK(waited <= 8); // two quanta
}

TEST_CASE("large jobs and small ones have as many bytes each", "[service]") {
  Many many;
  const auto large = party();
  const auto small = party();
  many.push(large, 131'072, 100, 1);
  many.push(small, 4096, 3200, 2);
  int64_t ahead = 0;
  for (int left[] = {0, 100, 3200}; left[1] != 0 && left[2] != 0;) {
    const int which = many.next();
    REQUIRE((which == 1 || which == 2));
    --left[which];
    ahead += which == 1 ? 131'072 : -4096;
    CHECK(ahead <= 2 * 131'072);
    CHECK(ahead >= -2 * 131'072);
  }
}

TEST_CASE("a party whose jobs sleep leaves room for those of the next", "[service]") {
  Many many;
  std::vector<std::shared_ptr<Party>> all;
  std::vector<Jobs::Begun> asleep;
  const size_t expected[] = {8, 4, 2, 1};
  for (const size_t least : expected) {
    all.push_back(party());
    many.push(all.back(), 64, 20, static_cast<int>(all.size()));
    size_t begun = 0;
    for (Jobs::Begun one; (one = many.jobs.begin()).job != nullptr; ++begun) {
      CHECK(one.party == all.back()); // the others have what they may
      asleep.push_back(one);
    }
    CHECK(begun == least);
  }
  CHECK_FALSE(many.jobs.ready());
  // One ends: whoever may have another.
  many.jobs.end(asleep.front().party);
  CHECK(many.jobs.ready());
}

TEST_CASE("parties come and go between jobs", "[service]") {
  Many many;
  int left = 0;
  unsigned chance = 1;
  std::vector<std::shared_ptr<Party>> all(5);
  for (auto& one : all)
    one = party();
  std::vector<int> last(6, 0); // numbers rise for each party
  std::vector<int> given(6, 0);
  for (int i = 0; i < 20'000; ++i) {
    chance = chance * 1'103'515'245 + 12'345;
    const unsigned which = (chance >> 16) % 5;
    if ((chance >> 8) % 2 == 0) {
      many.push(all[which], (chance >> 10) % 200'000, 1,
                static_cast<int>(which) * 100'000 + ++given[which]);
      ++left;
    } else if (left != 0) {
      const int number = many.next();
      REQUIRE(number > 0);
      CHECK(number % 100'000 == ++last[static_cast<size_t>(number / 100'000)]);
      --left;
    }
  }
  for (; left != 0; --left)
    REQUIRE(many.next() > 0);
  CHECK(many.jobs.empty());
  CHECK(many.next() == -1);
}
