// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/interval_set.h"

#include "catch.h"

#include <algorithm>
#include <random>
#include <vector>

using adverb::registration::IntervalSet;

TEST_CASE("a set of ranges says what a list of them says", "[registration]") {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    IntervalSet set;
    std::vector<std::pair<uintptr_t, uint64_t>> all;
    for (int step = 0; step < 500; ++step) {
      const uintptr_t start = random() % 200;
      const uint64_t bytes = 1 + random() % (step % 50 == 0 ? 100 : 8);
      switch (random() % 3) {
      case 0:
        set.add(start, bytes);
        all.emplace_back(start, bytes);
        break;
      case 1: {
        const auto range =
            all.empty() || random() % 4 == 0 ? std::pair{start, bytes} : all[random() % all.size()];
        const auto at = std::ranges::find(all, range);
        REQUIRE(set.remove(range.first, range.second) == (at != all.end()));
        if (at != all.end())
          all.erase(at);
        break;
      }
      default:
        REQUIRE(set.overlaps(start, bytes) == std::ranges::any_of(all, [&](const auto& range) {
                  return range.first < start + bytes && start < range.first + range.second;
                }));
      }
      REQUIRE(set.size() == all.size());
    }
  }
}
