// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Many simulated messages: their figures, with intervals.
#include "catch.h"
#include "tools/plan_simulation.h"

#include <cmath>
#include <random>

using namespace adverb::reliability;
using namespace adverb::tools;

namespace {

constexpr Scheme by_nack{};
constexpr Scheme by_timeout{.detection = Detection::timeout};
constexpr Scheme mds{.parity = Parity::mds, .k = 32, .m = 8};

Transfer transfer(double loss, uint64_t bytes = uint64_t{8} << 20) {
  return {.message_bytes = bytes, .bytes_per_second = 50e9, .rtt_ns = 25e6, .packet_loss = loss};
}

bool covers(const Sampled& sampled, double truth) {
  return sampled.low <= truth && (!sampled.high || truth <= *sampled.high);
}

} // namespace

TEST_CASE("intervals contain the truth 95 times of 100", "[campaign]") {
  constexpr int campaigns = 4000;
  constexpr size_t messages = 500;
  std::mt19937_64 random(7);
  int mean = 0, p99 = 0, p999 = 0;
  for (int i = 0; i < campaigns; ++i) {
    std::vector<double> times(messages);
    for (double& time : times)
      time = std::uniform_real_distribution<double>(0, 1)(random);
    const SimulatedFigures figures = figures_of(times);
    mean += covers(figures.mean_ns, 0.5) ? 1 : 0;
    p99 += covers(figures.p99_ns, 0.99) ? 1 : 0;
    p999 += covers(figures.p999_ns, 0.999) ? 1 : 0;
    CHECK(figures.p99_ns.high.has_value());
    CHECK(!figures.p999_ns.high.has_value()); // 500 messages may well have none so slow
  }
  // Ranks are whole numbers, so the interval of a quantile contains it somewhat more often.
  CHECK(mean >= 0.94 * campaigns);
  CHECK(mean <= 0.96 * campaigns);
  CHECK(p99 >= 0.95 * campaigns);
  CHECK(p99 <= 0.98 * campaigns);
  CHECK(p999 >= 0.975 * campaigns);
}

TEST_CASE("quantiles are order statistics", "[campaign]") {
  std::vector<double> times;
  for (int i = 1000; i > 0; --i)
    times.push_back(i);
  const SimulatedFigures figures = figures_of(times);
  CHECK(figures.messages == 1000);
  CHECK(figures.mean_ns.value == 500.5);
  CHECK(figures.p99_ns.value == 990);
  CHECK(figures.p999_ns.value == 999);
  CHECK(figures.p99_ns.low < 990);
  CHECK(*figures.p99_ns.high > 990);
}

TEST_CASE("a campaign depends on its seed alone", "[campaign]") {
  const Campaign campaign{.messages = 100, .seed = 3, .report_loss = {}};
  const auto first = simulate(transfer(1e-2), by_nack, campaign);
  const auto again = simulate(transfer(1e-2), by_nack, campaign);
  const auto other =
      simulate(transfer(1e-2), by_nack, {.messages = 100, .seed = 4, .report_loss = {}});
  REQUIRE((first && again && other));
  CHECK(first->mean_ns.value == again->mean_ns.value);
  CHECK(first->sent == again->sent);
  CHECK(first->mean_ns.value != other->mean_ns.value);
}

TEST_CASE("packets are lost and sent as often as the model says", "[campaign]") {
  for (const Scheme& scheme : {by_nack, by_timeout, mds}) {
    const auto figures =
        simulate(transfer(2e-2), scheme, {.messages = 400, .seed = 1, .report_loss = 0});
    REQUIRE(figures);
    // The means of so many messages are within a hundredth.
    CHECK(std::abs(figures->sent / estimate(transfer(2e-2), scheme).sent - 1) < 1e-2);
  }
}

TEST_CASE("lost reports make a message late, never wrong", "[campaign]") {
  const auto heard = simulate(transfer(0), by_nack, {.messages = 50, .seed = 1, .report_loss = 0});
  const auto half = simulate(transfer(0), by_nack, {.messages = 50, .seed = 1, .report_loss = 0.5});
  REQUIRE((heard && half));
  CHECK(half->mean_ns.value > heard->mean_ns.value);
  CHECK(heard->mean_ns.low == heard->mean_ns.high); // nothing is left to chance
}

TEST_CASE("messages too large for the simulation are known before", "[campaign]") {
  CHECK(can_simulate(transfer(0, uint64_t{16} << 30), mds));
  CHECK(!can_simulate(transfer(0, uint64_t{1} << 40), by_nack));
  constexpr Scheme much{.parity = Parity::mds, .k = 1, .m = 254};
  CHECK(!can_simulate(transfer(0, uint64_t{16} << 30), much));
  Transfer slow = transfer(0);
  slow.bytes_per_second = 1;
  CHECK(!can_simulate(slow, by_nack));
}
