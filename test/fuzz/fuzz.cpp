// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// fuzz ROUNDS SEED: each target with its seeds, and so many inputs made of them by a fixed sequence
// of random changes. The same arguments make the same inputs, on each machine. Prints TAP. With
// libFuzzer (long.sh) this file is left out.
#include "targets.h"

#include <cstdio>
#include <cstdlib>
#include <random>

namespace {

using adverb::fuzz::Bytes;

class Changes {
public:
  explicit Changes(uint64_t seed) : random_(seed) {}
  size_t below(size_t end) { return static_cast<size_t>(random_() % end); }

  void change(Bytes& input, const std::vector<Bytes>& others) {
    for (size_t n = 1 + below(8); n != 0; --n)
      once(input, others[below(others.size())]);
    if (input.size() > 4096)
      input.resize(4096);
  }

private:
  void once(Bytes& input, const Bytes& other) {
    constexpr uint64_t edges[] = {0,
                                  1,
                                  0x7F,
                                  0x80,
                                  0xFF,
                                  0x7FFF,
                                  0xFFFF,
                                  0x7FFFFFFF,
                                  0xFFFFFFFF,
                                  0x7FFFFFFFFFFFFFFF,
                                  0xFFFFFFFFFFFFFFFF};
    const size_t at = below(input.size() + 1);
    switch (below(6)) {
    case 0: // a byte
      if (at < input.size())
        input[at] = static_cast<std::byte>(random_());
      break;
    case 1: // a bit
      if (at < input.size())
        input[at] ^= static_cast<std::byte>(1U << below(8));
      break;
    case 2: // a number at the edge of its type
      for (size_t i = 0, value = edges[below(std::size(edges))], bytes = 1U << below(4);
           i < bytes && at + i < input.size(); ++i, value >>= 8)
        input[at + i] = static_cast<std::byte>(value);
      break;
    case 3: // cut
      input.resize(at);
      break;
    case 4: // longer
      input.insert(input.end(), below(64), static_cast<std::byte>(random_()));
      break;
    default: // another one behind it
      input.insert(input.end(), other.begin(), other.end());
    }
  }

  std::mt19937_64 random_; // its sequence is the same everywhere
};

} // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: fuzz ROUNDS SEED\n");
    return 2;
  }
  const auto rounds = std::strtoull(argv[1], nullptr, 10);
  for (const auto& target : adverb::fuzz::targets()) {
    Changes changes(std::strtoull(argv[2], nullptr, 10));
    for (const Bytes& seed : target.seeds)
      target.run(seed);
    const auto inputs = rounds / target.cost;
    for (unsigned long long round = 0; round < inputs; ++round) {
      Bytes input = target.seeds[changes.below(target.seeds.size())];
      changes.change(input, target.seeds);
      target.run(input);
    }
    std::printf("ok - %s: %llu inputs\n", target.name, inputs);
    std::fflush(stdout);
  }
  return 0;
}
