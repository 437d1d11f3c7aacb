// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The model of completion times: figures of the paper and of a Monte Carlo of its equations,
// limits, and a simulation of the equations in this file.
#include "catch.h"
#include "reliability/model.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

using namespace adverb::reliability;

namespace {

constexpr double ms = 1e6; // in nanoseconds
constexpr Scheme sr_timeout{.detection = Detection::timeout, .unit = Unit::chunk};
constexpr Scheme sr_nack{.detection = Detection::nack, .unit = Unit::chunk};
constexpr Scheme sr_packets{};

constexpr Scheme code(Parity parity, uint8_t k, uint8_t m, Unit unit) {
  return {.detection = Detection::timeout, .unit = unit, .parity = parity, .k = k, .m = m};
}
constexpr Scheme mds_by_chunk = code(Parity::mds, 32, 8, Unit::chunk);
constexpr Scheme mds_by_column = code(Parity::mds, 32, 8, Unit::packet);
constexpr Scheme xor_by_chunk = code(Parity::xor_parity, 32, 8, Unit::chunk);

// 128 MiB in chunks of 16 packets at 400 Gbit/s and 25 ms.
Transfer long_haul(double packet_loss) {
  return {.message_bytes = uint64_t{128} << 20,
          .bytes_per_second = 50e9,
          .rtt_ns = 25 * ms,
          .packet_loss = packet_loss};
}
Transfer with_chunk_loss(double loss) {
  return long_haul(-std::expm1(std::log1p(-loss) / 16));
}
double slowdown(const Transfer& transfer, const Scheme& scheme) {
  return mean_ns(transfer, scheme) / ideal_ns(transfer);
}

// The paper's equations with dice. Returns nanoseconds.
class Dice {
public:
  Dice(const Transfer& transfer, double loss, double interval_ns)
      : transfer_(transfer), loss_(loss), interval_ns_(interval_ns) {}

  double selective_repeat(uint64_t pieces, double spacing_ns) {
    double last = 0;
    for (uint64_t i = 1; i <= pieces; ++i)
      last = std::max(last,
                      static_cast<double>(i) * spacing_ns + (interval_ns_ + spacing_ns) * losses());
    return last + transfer_.rtt_ns;
  }
  bool lost() { return uniform_(random_) < loss_; }

private:
  double losses() {
    double count = 0;
    while (lost())
      ++count;
    return count;
  }
  const Transfer transfer_;
  const double loss_, interval_ns_;
  std::mt19937_64 random_{20250505};
  std::uniform_real_distribution<double> uniform_;
};

// Mean and quantiles of samples agree with an estimate within 4 standard deviations.
void check_agreement(std::vector<double> samples, const Estimate& estimate, double resolution_ns) {
  const auto count = static_cast<double>(samples.size());
  double sum = 0, squares = 0;
  for (const double sample : samples)
    sum += sample;
  const double mean = sum / count;
  for (const double sample : samples)
    squares += (sample - mean) * (sample - mean);
  CHECK(std::abs(estimate.mean_ns - mean) <= 4 * std::sqrt(squares) / count + resolution_ns);
  const auto above = [&](double time) {
    return static_cast<double>(
        std::ranges::count_if(samples, [&](double sample) { return sample > time; }));
  };
  // No more than the share that the quantile is named after is later, and more than that, a bit
  // sooner.
  for (const auto& [share, time] : {std::pair{0.01, estimate.p99_ns}, {0.001, estimate.p999_ns}}) {
    const double wanted = share * count, deviation = 4 * std::sqrt(wanted);
    CHECK(above(time + resolution_ns) <= wanted + deviation);
    CHECK(above(time - 2 * resolution_ns) >= wanted - deviation);
  }
}

} // namespace

TEST_CASE("without loss every scheme without parity takes the ideal time", "[model]") {
  const Transfer transfer = long_haul(0);
  CHECK(ideal_ns(transfer) == Approx(27.684 * ms).epsilon(1e-4));
  for (const Scheme& scheme : {sr_timeout, sr_nack, sr_packets}) {
    const Estimate found = estimate(transfer, scheme);
    CHECK(found.mean_ns == Approx(ideal_ns(transfer)).epsilon(1e-12));
    CHECK(found.p99_ns == Approx(ideal_ns(transfer)).epsilon(1e-12));
    CHECK(found.p999_ns == Approx(ideal_ns(transfer)).epsilon(1e-12));
    CHECK(found.sent == 1);
    CHECK(found.fallback == 0);
  }
  CHECK(go_back_n(transfer).mean_ns == Approx(ideal_ns(transfer)).epsilon(1e-12));
}

TEST_CASE("without loss a code costs the injection of its parity", "[model]") {
  const Estimate found = estimate(long_haul(0), mds_by_column);
  CHECK(found.mean_ns == Approx(28.355 * ms).epsilon(1e-4));
  CHECK(found.p999_ns == found.mean_ns);
  CHECK(found.sent == 1.25);
}

TEST_CASE("selective repeat is as slow as in the paper's figures", "[model]") {
  constexpr double tolerance = 0.02;
  CHECK(slowdown(with_chunk_loss(1e-5), sr_timeout) == Approx(1.054).epsilon(tolerance));
  CHECK(slowdown(with_chunk_loss(1e-4), sr_timeout) == Approx(1.493).epsilon(tolerance));
  CHECK(slowdown(with_chunk_loss(1e-3), sr_timeout) == Approx(3.337).epsilon(tolerance));
  CHECK(slowdown(with_chunk_loss(1e-2), sr_timeout) == Approx(4.204).epsilon(tolerance));
  CHECK(slowdown(with_chunk_loss(1e-5), sr_nack) == Approx(1.017).epsilon(tolerance));
  CHECK(slowdown(with_chunk_loss(1e-4), sr_nack) == Approx(1.159).epsilon(tolerance));
  CHECK(slowdown(with_chunk_loss(1e-3), sr_nack) == Approx(1.760).epsilon(tolerance));
  CHECK(slowdown(with_chunk_loss(1e-2), sr_nack) == Approx(2.060).epsilon(tolerance));
}

TEST_CASE("parity is not enough as often as in the paper's figures", "[model]") {
  CHECK(fallback(with_chunk_loss(1e-2), mds_by_chunk).by_chunk == Approx(1.3e-8).epsilon(0.05));
  CHECK(fallback(with_chunk_loss(5e-2), mds_by_chunk).by_chunk == Approx(0.0083).epsilon(0.01));
  CHECK(fallback(with_chunk_loss(0.1), mds_by_chunk).by_chunk == Approx(0.632).epsilon(0.01));
  CHECK(fallback(with_chunk_loss(1e-3), xor_by_chunk).by_chunk == Approx(0.0051).epsilon(0.01));
  CHECK(fallback(with_chunk_loss(1e-2), xor_by_chunk).by_chunk == Approx(0.395).epsilon(0.01));
}

TEST_CASE("decoding by columns bears losses that decoding by chunks does not", "[model]") {
  const Fallback found = fallback(long_haul(1e-2), mds_by_chunk);
  CHECK(found.by_chunk > 0.99);
  CHECK(found.by_column == Approx(2e-7).epsilon(0.1));
  CHECK(estimate(long_haul(1e-2), mds_by_column).fallback == found.by_column);
  CHECK(estimate(long_haul(1e-2), mds_by_chunk).fallback == found.by_chunk);
}

TEST_CASE("codes beat selective repeat by as much as in the paper's figures", "[model]") {
  const auto ratios = [](double loss, const Scheme& scheme) {
    const Estimate repeat = estimate(with_chunk_loss(loss), sr_timeout);
    const Estimate coded = estimate(with_chunk_loss(loss), scheme);
    return std::pair{repeat.mean_ns / coded.mean_ns, repeat.p999_ns / coded.p999_ns};
  };
  constexpr double tolerance = 0.02;
  const auto [mean_1, p999_1] = ratios(1e-2, mds_by_chunk);
  CHECK(mean_1 == Approx(4.11).epsilon(tolerance));
  CHECK(p999_1 == Approx(8.87).epsilon(tolerance));
  const auto [mean_5, p999_5] = ratios(5e-2, mds_by_chunk); // the blocks that fail decide
  CHECK(mean_5 == Approx(6.72).epsilon(tolerance));
  CHECK(p999_5 == Approx(2.14).epsilon(tolerance));
  const auto [mean_6, p999_6] = ratios(0.062, code(Parity::mds, 32, 12, Unit::chunk));
  CHECK(mean_6 == Approx(7.26).epsilon(tolerance));
  CHECK(p999_6 == Approx(13.99).epsilon(tolerance));
}

TEST_CASE("selective repeat agrees with dice", "[model]") {
  // Injection of less than one interval, and of several; a loss that needs many rounds.
  struct Case {
    uint64_t pieces;
    double rtt_ns, loss;
  };
  for (const Case& now : {Case{40, 1e6, 0.02}, {1, 1e6, 0.3}, {200, 5e4, 0.1}, {25, 2e5, 0.7}}) {
    INFO(now.pieces << " packets at a loss of " << now.loss);
    const Transfer transfer{.message_bytes = now.pieces * 4096,
                            .bytes_per_second = 1e9,
                            .rtt_ns = now.rtt_ns,
                            .packet_loss = now.loss};
    Dice dice(transfer, now.loss, now.rtt_ns);
    constexpr double spacing_ns = 4096;
    std::vector<double> samples(20000);
    std::ranges::generate(samples, [&] { return dice.selective_repeat(now.pieces, spacing_ns); });
    check_agreement(samples, estimate(transfer, sr_packets), spacing_ns / 2);
  }
}

TEST_CASE("a code with failing blocks agrees with dice", "[model]") {
  // Chunks of 1 packet in blocks of 4 with parity 1, so that each column is a chunk. Few blocks of
  // which one may fail, and so many that the model lets numbers of failures share an entry.
  struct Case {
    unsigned blocks;
    double loss;
    size_t messages;
  };
  constexpr unsigned k = 4, m = 1;
  constexpr double spacing_ns = 4096, rtt_ns = 3e5;
  for (const Case& now : {Case{3, 0.05, 20000}, {3, 0.4, 20000}, {100, 0.2, 5000}}) {
    INFO(now.blocks << " blocks at a loss of " << now.loss);
    const Transfer transfer{.message_bytes = uint64_t{now.blocks} * k * 4096,
                            .chunk_bytes = 4096,
                            .bytes_per_second = 1e9,
                            .rtt_ns = rtt_ns,
                            .packet_loss = now.loss};
    Dice dice(transfer, now.loss, 3 * rtt_ns);
    double failures = 0;
    std::vector<double> samples(now.messages);
    std::ranges::generate(samples, [&] {
      unsigned failed = 0;
      for (unsigned block = 0; block < now.blocks; ++block) {
        unsigned lost = 0;
        for (unsigned shard = 0; shard < k + m; ++shard)
          lost += dice.lost() ? 1 : 0;
        failed += lost > m ? 1 : 0;
      }
      failures += failed;
      const double coded = now.blocks * (k + m) * spacing_ns + rtt_ns;
      return failed == 0 ? coded
                         : coded + rtt_ns + dice.selective_repeat(uint64_t{failed} * k, spacing_ns);
    });
    const double failed_share = failures / static_cast<double>(now.messages) / now.blocks;
    for (const Unit unit : {Unit::chunk, Unit::packet}) {
      const Estimate found = estimate(transfer, code(Parity::mds, k, m, unit));
      check_agreement(samples, found, spacing_ns / 2);
      CHECK(found.sent == Approx(1.25 + failed_share / (1 - now.loss)).epsilon(0.01));
    }
  }
}

TEST_CASE("a piece that is nearly always lost takes as many rounds as the geometric law says",
          "[model]") {
  const Transfer transfer{.message_bytes = 65536,
                          .bytes_per_second = 1e9,
                          .rtt_ns = 1e6,
                          .packet_loss = 0.3}; // of a chunk, 0.997
  const double lost = 1 - std::pow(0.7, 16), interval_ns = 1e6 + 65536;
  const Estimate found = estimate(transfer, sr_nack);
  CHECK(found.mean_ns == Approx(interval_ns / (1 - lost)).epsilon(0.01));
  CHECK(found.p99_ns == Approx(interval_ns * std::log(0.01) / std::log(lost)).epsilon(0.01));
  CHECK(found.sent == Approx(1 / (1 - lost)));
}

TEST_CASE("XOR groups of different lengths each bear one loss", "[model]") {
  // 7 shards with parity 3: one group of 3 shards, two of 2, each with its parity.
  Transfer transfer = long_haul(0.01);
  transfer.chunk_bytes = 4096;
  transfer.message_bytes = uint64_t{7} * 4096;
  const auto decoded = [](int shards) {
    return std::pow(0.99, shards) + shards * 0.01 * std::pow(0.99, shards - 1);
  };
  CHECK(fallback(transfer, code(Parity::xor_parity, 7, 3, Unit::packet)).by_column ==
        Approx(1 - decoded(4) * decoded(3) * decoded(3)).epsilon(1e-9));
}

TEST_CASE("more loss never makes a scheme faster", "[model]") {
  for (const Scheme& scheme :
       {sr_timeout, sr_nack, sr_packets, mds_by_chunk, mds_by_column, xor_by_chunk,
        code(Parity::xor_parity, 32, 8, Unit::packet), code(Parity::mds, 16, 8, Unit::packet)}) {
    Estimate before = estimate(long_haul(0), scheme);
    for (double loss = 1e-12; loss < 0.6; loss *= 1.3) {
      INFO("loss " << loss << ", k " << int{scheme.k});
      const Estimate now = estimate(long_haul(loss), scheme);
      constexpr double rounding = 1 - 1e-12;
      REQUIRE(now.mean_ns >= before.mean_ns * rounding);
      REQUIRE(now.p99_ns >= before.p99_ns * rounding);
      REQUIRE(now.p999_ns >= before.p999_ns * rounding);
      REQUIRE(now.p999_ns >= now.p99_ns);
      REQUIRE(now.fallback >= before.fallback * rounding);
      REQUIRE(now.sent >= before.sent * rounding);
      before = now;
    }
  }
}

TEST_CASE("every input has a finite answer", "[model]") {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{4097}, uint64_t{3} << 20, uint64_t{1} << 36})
    for (const uint32_t chunk : {4096u, 65536u, 16u << 20})
      for (const double rtt : {1e3, 1e8})
        for (const double loss : {0.0, 1e-300, 1e-15, 1e-12, 1e-3, 0.5, 0.9, 1.0})
          for (const Scheme& scheme : {sr_timeout, sr_packets, mds_by_chunk, mds_by_column,
                                       xor_by_chunk, code(Parity::xor_parity, 7, 3, Unit::packet),
                                       code(Parity::mds, 1, 254, Unit::packet)}) {
            const Transfer transfer{.message_bytes = bytes,
                                    .chunk_bytes = chunk,
                                    .bytes_per_second = 50e9,
                                    .rtt_ns = rtt,
                                    .packet_loss = loss};
            const Estimate found = estimate(transfer, scheme);
            INFO(bytes << " bytes, chunk " << chunk << ", loss " << loss << ", k "
                       << int{scheme.k});
            // Infinity fails as well as NaN.
            REQUIRE(found.mean_ns < 1e300);
            REQUIRE(found.mean_ns >= ideal_ns(transfer) * (1 - 1e-12));
            REQUIRE((found.p99_ns < 1e300 && found.p999_ns >= found.p99_ns));
            REQUIRE((found.fallback >= 0 && found.fallback <= 1));
            REQUIRE((found.sent >= 1 && found.sent < 1e300));
            REQUIRE(go_back_n(transfer).mean_ns < 1e300);
            REQUIRE((chunk_loss(transfer) >= 0 && chunk_loss(transfer) <= 1));
          }
}

TEST_CASE("a tiny loss counts by its first order", "[model]") {
  const Transfer transfer = long_haul(1e-12);
  const double packets = 32768, interval_ns = 25 * ms;
  const double slower = mean_ns(transfer, sr_packets) - ideal_ns(transfer);
  CHECK(slower == Approx(1e-12 * packets * interval_ns).epsilon(0.06)); // late packets cost less
  CHECK(fallback(transfer, code(Parity::mds, 32, 1, Unit::packet)).by_column ==
        Approx(1024 * 528 * 1e-24).epsilon(1e-6));
}

TEST_CASE("the last block of a message has fewer chunks", "[model]") {
  // 33 chunks of 1 packet: a block of 32, and one of 1 that both parity chunks must fail.
  Transfer transfer = long_haul(1e-3);
  transfer.chunk_bytes = 4096;
  transfer.message_bytes = 33 * 4096;
  const Scheme scheme = code(Parity::mds, 32, 1, Unit::packet);
  const double full = 1 - std::pow(0.999, 33) - 33 * 1e-3 * std::pow(0.999, 32);
  CHECK(fallback(transfer, scheme).by_column == Approx(1 - (1 - full) * (1 - 1e-6)).epsilon(1e-9));
  CHECK(estimate(transfer, scheme).sent == Approx(1 + 2.0 / 33).epsilon(1e-3));
}

TEST_CASE("go-back-N sends a round trip's packets again for each loss", "[model]") {
  const double window = 25 * ms * 50 / 4096; // packets in a round trip at 50 bytes/ns
  const GoBackN found = go_back_n(long_haul(1e-4));
  CHECK(found.sent == Approx((1 + 1e-4 * window) / (1 - 1e-4)).epsilon(1e-12));
  CHECK(found.mean_ns == Approx(2.68435456 * ms * found.sent + 25 * ms).epsilon(1e-12));
}
