// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How long who takes messages looks for more before it sleeps.
#include "catch.h"
#include "link/spin.h"

using adverb::link::Spin;
using namespace std::chrono_literals;

TEST_CASE("it looks for as long as the policy says", "[spin]") {
  CHECK(Spin(50us, 2).allowed(1s) == 50us);
  CHECK(Spin(0us, 2).allowed(1s) == 0us);
}

TEST_CASE("with one processor it does not look", "[spin]") {
  CHECK(Spin(50us, 1).allowed(1s) == 0us);
}

TEST_CASE("in vain it looks for a quarter of the time at most", "[spin]") {
  Spin spin(50us, 2);
  auto now = std::chrono::nanoseconds(1s);
  const auto began = now;
  auto in_vain = 0ns;
  while (now - began < 10s) {
    const auto allowed = spin.allowed(now);
    now += std::max<std::chrono::nanoseconds>(allowed, 1us);
    spin.spent(allowed, now);
    in_vain += allowed;
  }
  CHECK(in_vain <= 2500ms + 25ms);
  CHECK(in_vain >= 2000ms);
}

TEST_CASE("what was not used is kept for no longer than 100 ms", "[spin]") {
  Spin spin(1ms, 2);
  std::chrono::nanoseconds now = 1h;
  int at_once = 0;
  for (; spin.allowed(now) == 1ms && at_once < 1000; ++at_once)
    spin.spent(1ms, now);
  CHECK(at_once == 25);
}

TEST_CASE("where others want the processor it sleeps for a while", "[spin]") {
  Spin spin(50us, 2);
  spin.round(1s, 1s + 3us);
  CHECK(spin.allowed(1s + 3us) == 50us);
  spin.round(1s, 1s + 6ms);
  CHECK(spin.allowed(1s + 6ms) == 0us);
  CHECK(spin.allowed(1s + 105ms) == 0us);
  CHECK(spin.allowed(1s + 107ms) == 50us);
}

TEST_CASE("who shares the processor is noticed after two of its turns", "[spin]") {
  Spin spin(50us, 2);
  spin.round(1s, 1s + 3ms);
  CHECK(spin.allowed(1s + 3ms) == 50us);
  spin.round(1s + 4ms, 1s + 7ms);
  CHECK(spin.allowed(1s + 7ms) == 0us);
}

TEST_CASE("a processor that is taken for 2 ms five times a second is looked on", "[spin]") {
  Spin spin(50us, 2);
  std::chrono::nanoseconds now = 1s;
  for (int i = 0; i < 1000; ++i) {
    spin.round(now, now + 2ms);
    now += 2ms;
    REQUIRE(spin.allowed(now) == 50us);
    now += 200ms;
  }
}

TEST_CASE("where others want the processor again and again it sleeps for longer", "[spin]") {
  Spin spin(50us, 2);
  std::chrono::nanoseconds now = 1s;
  for (const auto pause : {100ms, 200ms, 400ms, 800ms, 1600ms, 3200ms, 3200ms}) {
    spin.round(now, now + 6ms);
    now += 6ms;
    CHECK(spin.allowed(now + pause - 1ms) == 0us);
    CHECK(spin.allowed(now + pause) == 50us);
    now += pause + 1ms;
  }
  now += 3200ms;
  spin.round(now, now + 6ms);
  CHECK(spin.allowed(now + 105ms) == 0us);
  CHECK(spin.allowed(now + 107ms) == 50us);
}
