// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Pseudo-random bytes that both sides can compute: byte i of the pattern of a seed.
#pragma once

#include <cstdint>

namespace verify {

// splitmix64's finaliser (Steele, Lea, Flood 2014): well mixed, no state to carry.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint8_t pattern(uint64_t seed, uint64_t i) {
  return static_cast<uint8_t>(mix(seed ^ (i >> 3) * 0x2545f4914f6cdd1du) >> (i % 8 * 8));
}

void fill(uint8_t* p, uint64_t size, uint64_t seed, uint64_t from);

// Wrong bytes of [p, p+size) against the pattern; `first` is set at the first one.
uint64_t count_wrong(const uint8_t* p, uint64_t size, uint64_t seed, uint64_t from,
                     uint64_t* first);

} // namespace verify
