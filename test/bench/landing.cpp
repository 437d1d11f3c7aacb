// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The check of what a READ by a view has brought (preload/ways/landing.h), beside memcmp(3) of
// as many bytes that are equal, by turns.
//
//   bench_landing BYTES TURNS    prints the nanoseconds of memcmp and of the check, of each turn
#include "ways/landing.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t bytes_of_turn = size_t{256} << 20;

template <typename Once> double nanoseconds(size_t rounds, const Once& once) {
  const auto begun = Clock::now();
  for (size_t i = 0; i < rounds; ++i)
    once();
  return std::chrono::duration<double, std::nano>(Clock::now() - begun).count() /
         static_cast<double>(rounds);
}

int failed(const char* what) {
  fprintf(stderr, "bench_landing: %s\n", what);
  return 1;
}

} // namespace

int main(int argc, char** argv) {
  const size_t bytes = argc == 3 ? strtoul(argv[1], nullptr, 10) : 0;
  const size_t turns = argc == 3 ? strtoul(argv[2], nullptr, 10) : 0;
  if (bytes == 0 || bytes > bytes_of_turn || turns == 0)
    return failed("BYTES TURNS");
  std::mt19937_64 random(1); // NOLINT(bugprone-random-generator-seed): the same bytes each time
  adverb::ways::Pattern pattern;
  std::ranges::generate(pattern, [&] { return static_cast<std::byte>(random()); });
  std::vector<std::byte> came(bytes);
  std::ranges::generate(came, [&] { return static_cast<std::byte>(random()); });
  const std::vector<std::byte> same = came;
  const size_t rounds = bytes_of_turn / bytes;
  int (*volatile compare)(const void*, const void*, size_t) = memcmp; // so that it is not left out
  size_t suspects = 0, unequal = 0;
  for (size_t turn = 0; turn < turns; ++turn) {
    const double compared = nanoseconds(
        rounds, [&] { unequal += compare(came.data(), same.data(), bytes) != 0 ? 1U : 0U; });
    const double checked = nanoseconds(rounds, [&] {
      adverb::ways::Landing landing(pattern, 0);
      const auto suspect = [&](uint64_t) { ++suspects; };
      landing.came(came, suspect);
      landing.end(suspect);
    });
    printf("%.1f %.1f\n", compared, checked);
  }
  // Of 64 Ki words the chance that one is the pattern's is 2^-16.
  return unequal != 0 || suspects != 0 ? failed("bytes are found that are not there") : 0;
}
