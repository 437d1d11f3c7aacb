// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "pattern.h"

#include <cstring>

namespace verify {
namespace {

// Eight bytes at a time: under an emulated CPU the byte-wise form would be most of a run.
uint64_t word(uint64_t seed, uint64_t i) {
  return mix(seed ^ i * 0x2545f4914f6cdd1du);
}

} // namespace

void fill(uint8_t* p, uint64_t size, uint64_t seed, uint64_t from) {
  uint64_t i = 0;
  for (; i < size && (from + i) % 8; ++i)
    p[i] = pattern(seed, from + i);
  for (; i + 8 <= size; i += 8) {
    uint64_t w = word(seed, (from + i) / 8);
    std::memcpy(p + i, &w, 8);
  }
  for (; i < size; ++i)
    p[i] = pattern(seed, from + i);
}

uint64_t count_wrong(const uint8_t* p, uint64_t size, uint64_t seed, uint64_t from,
                     uint64_t* first) {
  uint64_t wrong = 0;
  auto look = [&](uint64_t i) {
    if (p[i] == pattern(seed, from + i))
      return;
    if (wrong++ == 0)
      *first = i;
  };
  uint64_t i = 0;
  for (; i < size && (from + i) % 8; ++i)
    look(i);
  for (; i + 8 <= size; i += 8) {
    uint64_t w;
    std::memcpy(&w, p + i, 8);
    if (w != word(seed, (from + i) / 8))
      for (uint64_t j = 0; j < 8; ++j)
        look(i + j);
  }
  for (; i < size; ++i)
    look(i);
  return wrong;
}

} // namespace verify
