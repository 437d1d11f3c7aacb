// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What is leased is called back where memory changes, and who changes it waits for that.
#include "registration/recalls.h"

#include <catch2/catch.hpp>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;
using adverb::memory::all_stripes;
using adverb::memory::Stripes;
using adverb::registration::Recalls;

struct Peer final : adverb::registration::Lessor {
  void recall(Stripes where) override { recalled.push_back(where); }
  void give_up(Stripes where) override { given_up.push_back(where); }
  void shed() override { ++sheds; }
  void views_changed() override { ++changes; }
  std::vector<Stripes> recalled;
  std::vector<Stripes> given_up;
  int sheds = 0;
  int changes = 0; // of views
};

struct Bench {
  int wakes = 0;
  int backs = 0;
  Recalls recalls{
      {[this] { ++wakes; }, [this] { ++backs; },
       [](const std::function<bool()>& done, std::chrono::milliseconds) { return done(); }}};
  std::shared_ptr<Peer> peer = std::make_shared<Peer>();
  Bench() { recalls.join(peer); }
};

TEST_CASE("a change calls back what is leased in its stripes, and nothing where nothing is") {
  Bench b;
  REQUIRE(b.recalls.out(3));
  b.recalls.begin_change(1U << 4);
  CHECK(b.wakes == 0);
  CHECK(b.recalls.wait(1U << 4, 10ms));
  b.recalls.end_change(1U << 4);

  b.recalls.begin_change(1U << 3 | 1U << 4);
  CHECK(b.wakes == 1);
  b.recalls.serve();
  CHECK(b.peer->recalled == std::vector<Stripes>{1U << 3 | 1U << 4});
  CHECK_FALSE(b.recalls.wait(1U << 3, 10ms));
  b.recalls.back(3);
  CHECK(b.backs == 1);
  CHECK(b.recalls.wait(1U << 3, 10ms));
  b.recalls.serve(); // again, for no reason
  CHECK(b.peer->recalled.size() == 1);
}

TEST_CASE("while memory changes nothing is leased in its stripes, and elsewhere it is") {
  Bench b;
  b.recalls.begin_change(1U << 3);
  CHECK_FALSE(b.recalls.out(3));
  CHECK(b.recalls.out(4));
  CHECK(b.recalls.all_back(1U << 3));
  b.recalls.begin_change(1U << 3); // another thread's
  b.recalls.end_change(1U << 3);
  CHECK_FALSE(b.recalls.out(3));
  b.recalls.end_change(1U << 3);
  CHECK(b.recalls.out(3));
  CHECK_FALSE(b.recalls.all_back(all_stripes));
}

TEST_CASE("what is not back in time is given up in its stripes, before others are called back") {
  Bench b;
  REQUIRE(b.recalls.out(3));
  b.recalls.begin_change(1U << 3);
  b.recalls.serve();
  b.recalls.overdue(1U << 3);
  b.recalls.end_change(1U << 3);
  b.recalls.serve();
  CHECK(b.peer->given_up == std::vector<Stripes>{1U << 3});
  CHECK(b.peer->recalled.size() == 1);
  b.recalls.shed();
  b.recalls.serve();
  CHECK(b.peer->sheds == 1);
}

} // namespace
