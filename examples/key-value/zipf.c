// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Rejection-inversion (Hoermann and Derflinger, "Rejection-inversion to generate variates from
// monotone discrete distributions", 1996): no table, and no sum over all keys before the first.
#include "zipf.h"

#include <math.h>

uint64_t random_bits(struct random* random) { // splitmix64
  uint64_t x = random->state += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

double random_unit(struct random* random) {
  return (double)(random_bits(random) >> 11) * 0x1p-53;
}

// The integral of x to the power of -theta, and its inverse, also where theta is 1.
static double integral(double theta, double x) {
  const double e = (1 - theta) * log(x);
  return fabs(e) > 1e-8 ? log(x) * expm1(e) / e : log(x) * (1 + e / 2);
}

static double inverse(double theta, double y) {
  double e = y * (1 - theta);
  if (e < -1)
    e = -1; // rounding
  return exp(fabs(e) > 1e-8 ? y * log1p(e) / e : y * (1 - e / 2));
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
  while (b) {
    const uint64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

void zipf_start(struct zipf* zipf, uint64_t keys, double theta) {
  zipf->keys = keys;
  zipf->theta = theta;
  zipf->first = integral(theta, 1.5) - 1;
  zipf->last = integral(theta, (double)keys + 0.5);
  zipf->shortcut = 2 - inverse(theta, integral(theta, 2.5) - exp(-theta * log(2)));
  // Neighbours in popularity lie far apart in the table, as behind a hash. Without a divisor in
  // common with their number all keys have their turn.
  zipf->stride = (uint64_t)((double)keys * 0.6180339887) | 1;
  while (common_divisor(keys, zipf->stride) != 1)
    zipf->stride += 2;
}

uint64_t zipf_key(const struct zipf* zipf, struct random* random) {
  const double theta = zipf->theta;
  for (;;) {
    const double y = zipf->last + random_unit(random) * (zipf->first - zipf->last);
    const double x = inverse(theta, y);
    uint64_t rank = x < 1 ? 1 : (uint64_t)(x + 0.5);
    if (rank < 1)
      rank = 1;
    if (rank > zipf->keys)
      rank = zipf->keys;
    const double k = (double)rank;
    if (k - x <= zipf->shortcut || y >= integral(theta, k + 0.5) - exp(-theta * log(k)))
      return (uint64_t)((unsigned __int128)(rank - 1) * zipf->stride % zipf->keys);
  }
}
