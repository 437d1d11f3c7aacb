// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which scheme `auto` chooses.
#include "catch.h"
#include "reliability/choose.h"

using namespace adverb::reliability;

namespace {

Transfer transfer(double loss, double rtt_ns = 25e6, uint64_t bytes = uint64_t{128} << 20) {
  return {.message_bytes = bytes, .bytes_per_second = 50e9, .rtt_ns = rtt_ns, .packet_loss = loss};
}
bool is_repeat(const Choice& choice) {
  return choice.scheme == Scheme{};
}

} // namespace

TEST_CASE("every candidate is valid, and no parity is the first", "[choice]") {
  CHECK(candidates[0] == Scheme{});
  double parity = 0;
  for (const Scheme& scheme : candidates) {
    CHECK(scheme.valid());
    const double own = scheme.k == 0 ? 0 : static_cast<double>(scheme.m) / scheme.k;
    CHECK(own >= parity);
    parity = own;
  }
}

TEST_CASE("a link without loss, or next to none, gets no parity", "[choice]") {
  CHECK(is_repeat(choose_scheme(transfer(0))));
  CHECK(is_repeat(choose_scheme(transfer(1e-9))));
}

TEST_CASE("a short link or a very long message gets no parity", "[choice]") {
  CHECK(is_repeat(choose_scheme(transfer(1e-4, 1e4))));
  CHECK(is_repeat(choose_scheme(transfer(1e-4, 25e6, uint64_t{64} << 30))));
}

TEST_CASE("a long link with loss gets a code, with more parity for more loss", "[choice]") {
  const Choice some = choose_scheme(transfer(1e-4));
  REQUIRE(some.scheme.has_parity());
  CHECK(some.mean_ns < mean_ns(transfer(1e-4), {}));
  CHECK(some.mean_ns == mean_ns(transfer(1e-4), some.scheme));
  const Choice more = choose_scheme(transfer(5e-2));
  REQUIRE(more.scheme.has_parity());
  CHECK(more.scheme.m * some.scheme.k > some.scheme.m * more.scheme.k);
}

TEST_CASE("a message behind a round trip of others is one of many", "[choice]") {
  const Transfer t = transfer(1e-2); // 50 GB/s, 25 ms: 1.25 GB
  CHECK(is_one_of_many(t, 1'300'000'000));
  CHECK_FALSE(is_one_of_many(t, 1'200'000'000));
  CHECK_FALSE(is_one_of_many(t, 0));
}

TEST_CASE("of schemes that are equally fast the first is chosen", "[choice]") {
  const Scheme by_xor{.parity = Parity::xor_parity, .k = 32, .m = 8};
  const Scheme by_mds{.parity = Parity::mds, .k = 32, .m = 8};
  for (const auto& list : {std::array{by_xor, by_mds}, std::array{by_mds, by_xor}})
    CHECK(choose_scheme(transfer(1e-9), list).scheme == list[0]);
}

TEST_CASE("nothing is much faster than what is chosen", "[choice]") {
  for (double loss = 1e-9; loss < 0.5; loss *= 3)
    for (const double rtt : {1e4, 1e6, 1e8}) {
      const Choice chosen = choose_scheme(transfer(loss, rtt));
      for (const Scheme& scheme : candidates)
        CHECK(chosen.mean_ns <= mean_ns(transfer(loss, rtt), scheme) * (1 + 1.01 * least_gain));
    }
}
