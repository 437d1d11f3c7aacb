// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The model's own exponential function and logarithms, held to libm's.
#include "catch.h"
#include "reliability/elementary.h"

#include <cmath>

using namespace adverb::reliability;

namespace {

constexpr double close_enough = 1e-14;

bool near(double found, double wanted) {
  return std::abs(found - wanted) <= close_enough * std::abs(wanted);
}

} // namespace

TEST_CASE("the exponential function is libm's", "[elementary]") {
  for (double x = -700; x < 700; x += 0.3711) {
    INFO(x);
    // The result's error is the argument's, times x.
    CHECK(std::abs(exponential(x) / std::exp(x) - 1) < close_enough * (1 + std::abs(x) / 64));
  }
  CHECK(exponential(-800) == 0);
  CHECK(exponential(0) == 1);
  CHECK(std::isinf(exponential(800)));
  CHECK(exponential(-740) ==
        Approx(std::exp(-740)).margin(1e-323)); // below the least normal number
}

TEST_CASE("the logarithm is libm's", "[elementary]") {
  for (double x = 1e-310; x < 1e300; x *= 1.731) {
    INFO(x);
    CHECK(near(logarithm(x), std::log(x)));
  }
  CHECK(logarithm(1) == 0);
  CHECK(std::isinf(logarithm(0)));
}

TEST_CASE("small arguments lose no digit", "[elementary]") {
  for (double size = 1e-300; size < 0.9; size *= 1.37) {
    INFO(size);
    for (const double x : {size, -size}) {
      CHECK(near(exponential_minus_1(x), std::expm1(x)));
      CHECK(near(logarithm_plus_1(x), std::log1p(x)));
    }
  }
}

TEST_CASE("factorials are libm's", "[elementary]") {
  for (double n = 0; n < 2e6; n = std::floor(n * 1.1) + 1) {
    INFO(n);
    CHECK(std::abs(log_factorial(n) - std::lgamma(n + 1)) <=
          close_enough * std::max(1.0, std::lgamma(n + 1)));
  }
}
