// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A histogram of times: 64 steps for each power of two, so that a percentile is right to 1.6%.
#pragma once

#include <stdint.h>
#include <stdio.h>

struct times {
  uint64_t count, sum;
  uint64_t of[64 * 64];
};

static inline void times_add(struct times* times, uint64_t ns) {
  const int above = ns < 64 ? 0 : 58 - __builtin_clzll(ns); // the top bit, beyond the first six
  times->of[(uint64_t)above * 64 + (ns >> above)]++;
  times->count++;
  times->sum += ns;
}

static inline double times_mean_us(const struct times* times) {
  return times->count ? (double)times->sum / (double)times->count / 1e3 : 0;
}

static inline double times_us_at(const struct times* times, double share) {
  uint64_t seen = 0;
  for (uint64_t i = 0; i < sizeof times->of / sizeof *times->of; i++) {
    seen += times->of[i];
    if (seen && (double)seen >= share * (double)times->count)
      return i < 64 ? (double)i / 1e3 : (double)((i % 64 + 64) << (i / 64 - 1)) / 1e3;
  }
  return 0;
}
