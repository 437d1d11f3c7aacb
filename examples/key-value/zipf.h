// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Random numbers, and keys that are as unevenly popular as Zipf's law has it: the one of rank r is
// asked for in proportion to r to the power of -theta. 0 is evenly.
#pragma once

#include <stdint.h>

struct random {
  uint64_t state;
};
uint64_t random_bits(struct random* random);
double random_unit(struct random* random); // in [0, 1)

struct zipf {
  uint64_t keys, stride;
  double theta, first, last, shortcut;
};
void zipf_start(struct zipf* zipf, uint64_t keys, double theta);
uint64_t zipf_key(const struct zipf* zipf, struct random* random);
