// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The exponential function and logarithms for the model of completion times. The library needs no
// shared library but libc, so libm's are out of reach. Errors are below 1e-14, relative to the
// result; of log_factorial, relative to the larger of 1 and the result.
//
// Pure; no argument is NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace adverb::reliability {

inline constexpr double ln_2 = 0.693147180559945309417;

// e^x; 0 below the least double, infinity above the largest.
inline double exponential(double x) noexcept {
  if (x < -745)
    return 0;
  if (x > 709.7)
    return std::numeric_limits<double>::infinity();
  // x = halvings * ln 2 + rest with |rest| <= ln 2 / 2; ln 2 in two parts keeps the rest exact.
  constexpr double ln_2_high = 0x1.62e42fee00000p-1, ln_2_low = 0x1.a39ef35793c76p-33;
  const int doublings = static_cast<int>(x / ln_2 + (x < 0 ? -0.5 : 0.5));
  const double rest = (x - doublings * ln_2_high) - doublings * ln_2_low;
  double sum = 1;
  for (int term = 14; term > 0; --term)
    sum = 1 + sum * rest / term;
  // In two steps, since 2^doublings may be below the least normal number.
  const auto power = [](int exponent) {
    return std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent) << 52);
  };
  return sum * power(doublings / 2) * power(doublings - doublings / 2);
}

// e^x - 1, exact for small x, too.
inline double exponential_minus_1(double x) noexcept {
  if (x < -0.4 || x > 0.4)
    return exponential(x) - 1;
  double sum = 1;
  for (int term = 15; term > 1; --term)
    sum = 1 + sum * x / term;
  return x * sum;
}

// ln((1 + s) / (1 - s)) for |s| < 0.18.
inline double logarithm_of_ratio(double s) noexcept {
  double sum = 0;
  for (int odd = 23; odd > 0; odd -= 2)
    sum = sum * s * s + 1.0 / odd;
  return 2 * s * sum;
}

// ln x for x >= 0; minus infinity for 0.
inline double logarithm(double x) noexcept {
  if (x <= 0)
    return -std::numeric_limits<double>::infinity();
  int exponent = 0;
  if (x < std::numeric_limits<double>::min()) {
    x *= 0x1p54;
    exponent = -54;
  }
  const auto bits = std::bit_cast<uint64_t>(x);
  exponent += static_cast<int>(bits >> 52) - 1023;
  double mantissa =
      std::bit_cast<double>((bits & ((uint64_t{1} << 52) - 1)) | (uint64_t{1023} << 52));
  if (mantissa > 1.41421356237309505) {
    mantissa /= 2;
    ++exponent;
  }
  return exponent * ln_2 + logarithm_of_ratio((mantissa - 1) / (mantissa + 1));
}

// ln(1 + x) for x >= -1, exact for small x, too.
inline double logarithm_plus_1(double x) noexcept {
  return x < -0.25 || x > 0.25 ? logarithm(1 + x) : logarithm_of_ratio(x / (2 + x));
}

// ln(n!) for a whole number n >= 0, by Stirling's series from 16 on.
inline double log_factorial(double n) noexcept {
  if (n < 16) {
    double product = 1;
    for (int factor = 2; factor <= n; ++factor)
      product *= factor;
    return logarithm(product);
  }
  constexpr double half_ln_2_pi = 0.918938533204672741780;
  const double inverse = 1 / n, square = inverse * inverse;
  return (n + 0.5) * logarithm(n) - n + half_ln_2_pi +
         inverse * (1.0 / 12 - square * (1.0 / 360 - square * (1.0 / 1260 - square / 1680)));
}

} // namespace adverb::reliability
