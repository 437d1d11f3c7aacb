// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Greedy all-pairs, as in AETG (Cohen et al. 1997): each new row starts from a pair still missing
// and is the best of a few candidates.
#include "sample.h"

#include "pattern.h"

#include <set>

namespace verify {
namespace {

struct Dice {
  uint64_t state;
  int operator()(int n) { return static_cast<int>(mix(state++) % static_cast<uint64_t>(n)); }
};

struct PairKey {
  int f, x, g, y;
  auto operator<=>(const PairKey&) const = default;
};

int gain(const std::set<PairKey>& missing, const std::vector<int>& row) {
  int n = 0;
  for (std::size_t f = 0; f < row.size(); ++f)
    for (std::size_t g = f + 1; g < row.size(); ++g)
      n += missing.count({static_cast<int>(f), row[f], static_cast<int>(g), row[g]}) != 0;
  return n;
}

} // namespace

Rows pairwise_sample(const std::vector<int>& levels, uint64_t seed) {
  Dice dice{mix(seed)};
  const int factors = static_cast<int>(levels.size());
  auto level = [&](int f) { return levels[static_cast<std::size_t>(f)]; };
  std::set<PairKey> missing;
  for (int f = 0; f < factors; ++f)
    for (int g = f + 1; g < factors; ++g)
      for (int x = 0; x < level(f); ++x)
        for (int y = 0; y < level(g); ++y)
          missing.insert({f, x, g, y});
  Rows rows;
  while (!missing.empty()) {
    const PairKey start = *missing.begin();
    std::vector<int> best;
    int best_gain = -1;
    for (int candidate = 0; candidate < 24; ++candidate) {
      std::vector<int> row;
      for (int f = 0; f < factors; ++f)
        row.push_back(f == start.f ? start.x : f == start.g ? start.y : dice(level(f)));
      if (int n = gain(missing, row); n > best_gain)
        best = row, best_gain = n;
    }
    for (int f = 0; f < factors; ++f)
      for (int g = f + 1; g < factors; ++g)
        missing.erase({f, best[static_cast<std::size_t>(f)], g, best[static_cast<std::size_t>(g)]});
    rows.push_back(best);
  }
  return rows;
}

Rows wide_sample(const std::vector<int>& levels, int fixed, int level, uint64_t seed) {
  Dice dice{mix(seed)};
  const std::size_t a = static_cast<std::size_t>(fixed) + 1;
  Rows rows;
  for (int x = 0; x < levels[a]; ++x)
    for (int y = 0; y < levels[a + 1]; ++y)
      for (int z = 0; z < levels[a + 2]; ++z) {
        std::vector<int> row;
        for (int n : levels)
          row.push_back(dice(n));
        row[static_cast<std::size_t>(fixed)] = level;
        row[a] = x, row[a + 1] = y, row[a + 2] = z;
        rows.push_back(row);
      }
  return rows;
}

} // namespace verify
