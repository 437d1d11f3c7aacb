// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "reliability/model.h"

#include "reliability/elementary.h"
#include "reliability/rounds.h"

#include <algorithm>
#include <array>
#include <span>

namespace adverb::reliability {
namespace {

constexpr double negligible = 1e-17;
constexpr double least_log_arrived = -34.5; // e^-34.5 is 1e-15: no loss is certain

// The logarithms of a chance and of its opposite, of which either may be too near to 1.
struct Loss {
  double log_lost;
  double log_arrived;
};

double whole(double value) noexcept {
  const auto below = static_cast<double>(static_cast<uint64_t>(value));
  return below < value ? below + 1 : below;
}

Loss packet_loss_of(const Transfer& transfer) noexcept {
  const double loss = std::clamp(transfer.packet_loss, 0.0, most_loss);
  return {logarithm(loss), logarithm_plus_1(-loss)};
}

// Of a chunk of so many packets, each of which is needed.
Loss chunk_loss_of(const Transfer& transfer, double packets) noexcept {
  const double arrived =
      std::max(least_log_arrived, packets * packet_loss_of(transfer).log_arrived);
  // Near 1, the logarithm of the loss is what the chance of arrival says.
  const double lost = arrived > -ln_2 ? logarithm(-exponential_minus_1(arrived))
                                      : logarithm_plus_1(-exponential(arrived));
  return {lost, arrived};
}

// The message as it is cut.
struct Cutting {
  explicit Cutting(const Transfer& transfer) noexcept {
    const auto message = static_cast<double>(std::max<uint64_t>(1, transfer.message_bytes));
    chunk_bytes = std::min<double>(std::max(1u, transfer.chunk_bytes), message);
    const double packet_bytes = std::min<double>(std::max(1u, transfer.packet_bytes), chunk_bytes);
    chunks = whole(message / chunk_bytes);
    packets = whole(message / packet_bytes);
    columns = whole(chunk_bytes / packet_bytes);
    ns_per_byte = 1e9 / transfer.bytes_per_second;
    injection_ns = message * ns_per_byte;
  }
  double pieces(Unit unit) const noexcept { return unit == Unit::chunk ? chunks : packets; }

  double chunks, packets;
  double chunk_bytes;
  double columns; // packets of a chunk
  double ns_per_byte;
  double injection_ns;
};

// Selective repeat of pieces of one size.
struct Repeat {
  Repeat(const Transfer& transfer, const Cutting& cutting, const Scheme& scheme) noexcept
      : loss(scheme.unit == Unit::chunk ? chunk_loss_of(transfer, cutting.columns)
                                        : packet_loss_of(transfer)),
        pieces(cutting.pieces(scheme.unit)), spacing_ns(cutting.injection_ns / pieces),
        rounds(loss.log_lost,
               (scheme.detection == Detection::timeout ? 1 + transfer.alpha : 1) * transfer.rtt_ns +
                   spacing_ns,
               pieces) {}

  // Transmissions of a piece, mean.
  double transmissions() const noexcept { return exponential(-loss.log_arrived); }

  Loss loss;
  double pieces;
  double spacing_ns; // a piece's injection
  Rounds rounds;
};

// ln of the number of ways to choose `some` of `all`.
double log_choices(double all, double some) noexcept {
  return log_factorial(all) - log_factorial(some) - log_factorial(all - some);
}

// P(more than `most` of `all` are lost), by a sum from there on: nothing cancels.
double more_lost(unsigned all, unsigned most, const Loss& loss) noexcept {
  double sum = 0;
  for (unsigned lost = most + 1; lost <= all; ++lost) {
    const double term = exponential(log_choices(all, lost) + lost * loss.log_lost +
                                    (all - lost) * loss.log_arrived);
    sum += term;
    if (term < negligible * sum)
      break;
  }
  return std::min(1.0, sum);
}

// ln P(a block of so many data shards is decoded): each group of shards with parity of its own is.
double log_decoded(const Scheme& scheme, unsigned data, const Loss& loss) noexcept {
  if (scheme.parity == Parity::mds)
    return logarithm_plus_1(-more_lost(data + scheme.m, scheme.m, loss));
  // XOR: data % m groups have one shard more than the others.
  const unsigned shorter = data / scheme.m + 1, longer = data % scheme.m;
  return (scheme.m - longer) * logarithm_plus_1(-more_lost(shorter, 1, loss)) +
         (longer == 0 ? 0 : longer * logarithm_plus_1(-more_lost(shorter + 1, 1, loss)));
}

// ln P(every block of the message is decoded); the last block may have fewer data chunks.
double log_all_decoded(const Transfer& transfer, const Cutting& cutting, const Scheme& scheme,
                       Unit unit) noexcept {
  const double blocks = whole(cutting.chunks / scheme.k);
  const auto last = static_cast<unsigned>(cutting.chunks - (blocks - 1) * scheme.k);
  const bool by_chunk = unit == Unit::chunk;
  const Loss loss = by_chunk ? chunk_loss_of(transfer, cutting.columns) : packet_loss_of(transfer);
  const double others = blocks == 1 ? 0 : (blocks - 1) * log_decoded(scheme, scheme.k, loss);
  return (others + log_decoded(scheme, last, loss)) * (by_chunk ? 1 : cutting.columns);
}

// A message with parity.
struct Coded {
  Coded(const Transfer& transfer, const Scheme& scheme) noexcept
      : cutting(transfer), repeat(transfer, cutting, scheme),
        blocks(whole(cutting.chunks / scheme.k)),
        parity_ns(blocks * scheme.m * cutting.chunk_bytes * cutting.ns_per_byte),
        decoded_ns(cutting.injection_ns + parity_ns + transfer.rtt_ns),
        late_ns((transfer.beta + 1) * transfer.rtt_ns) {
    const double log_all = log_all_decoded(transfer, cutting, scheme, scheme.unit);
    fallback = -exponential_minus_1(log_all);
    if (fallback > negligible)
      count_failures(log_all / blocks);
  }

  // Failed blocks of the message: a number, or a few next to each other, of which `blocks` is the
  // mean.
  struct Failure {
    double chance;
    double blocks;
  };
  std::span<const Failure> failures() const noexcept { return {failure.data(), failure_count}; }

  // Data pieces of the failed blocks, and their injection.
  double pieces_of(const Failure& failed) const noexcept {
    return repeat.pieces * failed.blocks / blocks;
  }
  double injection_of(const Failure& failed) const noexcept {
    return pieces_of(failed) * repeat.spacing_ns;
  }

  double mean_ns() const noexcept {
    double sum = decoded_ns;
    for (const Failure& failed : failures())
      sum += failed.chance * (late_ns + injection_of(failed) +
                              repeat.rounds.mean_ns(pieces_of(failed), repeat.spacing_ns));
    return sum;
  }
  // P(it takes longer than decoded_ns + more_ns) for more_ns >= 0.
  double longer_than(double more_ns) const noexcept {
    double sum = 0;
    for (const Failure& failed : failures()) {
      const double tail = more_ns - late_ns - injection_of(failed);
      sum += tail < 0 ? failed.chance
                      : -failed.chance * exponential_minus_1(repeat.rounds.log_within(
                                             pieces_of(failed), repeat.spacing_ns, tail));
    }
    return sum;
  }
  double longest_ns() const noexcept {
    return late_ns + cutting.injection_ns + repeat.rounds.longest_ns(repeat.spacing_ns);
  }
  double sent() const noexcept {
    double again_ns = 0;
    for (const Failure& failed : failures())
      again_ns += failed.chance * injection_of(failed) * repeat.transmissions();
    return 1 + (parity_ns + again_ns) / cutting.injection_ns;
  }

  Cutting cutting;
  Repeat repeat;
  double blocks;
  double parity_ns;
  double decoded_ns; // when all blocks are decoded
  double late_ns;    // from then to the first retransmission, and the round trip of the last
  double fallback;

private:
  static constexpr size_t most_failures = 32;

  // The number of failed blocks is binomial. What is far from its mean is left out, and where there
  // are still many numbers, neighbours share an entry.
  void count_failures(double log_block_decoded) noexcept {
    const double chance = -exponential_minus_1(log_block_decoded);
    const double mean = chance * blocks;
    // 10 standard deviations; a root is at most its argument's half and 1/2.
    const double spread = 10 * exponential(logarithm(mean * (1 - chance) + 1) / 2) + 8;
    const double first = whole(std::max(1.0, mean - spread));
    const double last = std::min(blocks, whole(mean + spread));
    const double share = whole((last - first + 1) / most_failures);
    const double log_chance = logarithm(chance);
    for (double from = first; from <= last; from += share) {
      Failure entry{0, 0};
      for (double number = from; number < from + share && number <= last; ++number) {
        const double one =
            exponential(log_choices(blocks, number) + number * log_chance +
                        (number == blocks ? 0 : (blocks - number) * log_block_decoded));
        entry.chance += one;
        entry.blocks += one * number;
      }
      if (entry.chance <= 0)
        continue;
      entry.blocks /= entry.chance;
      failure[failure_count++] = entry;
    }
  }

  std::array<Failure, most_failures> failure{};
  size_t failure_count = 0;
};

// The least time >= 0 that is exceeded with no more than `chance`; `exceeded` falls.
template <typename Exceeded>
double quantile(const Exceeded& exceeded, double longest, double chance) noexcept {
  double low = 0, high = longest;
  if (exceeded(low) <= chance)
    return low;
  constexpr int halvings = 50;
  for (int i = 0; i < halvings; ++i) {
    const double middle = (low + high) / 2;
    (exceeded(middle) <= chance ? high : low) = middle;
  }
  return high;
}

constexpr double beyond_p99 = 1e-2, beyond_p999 = 1e-3;

} // namespace

double ideal_ns(const Transfer& transfer) noexcept {
  return Cutting(transfer).injection_ns + transfer.rtt_ns;
}

double chunk_loss(const Transfer& transfer) noexcept {
  const double packets =
      whole(static_cast<double>(transfer.chunk_bytes) / std::max(1u, transfer.packet_bytes));
  return -exponential_minus_1(chunk_loss_of(transfer, packets).log_arrived);
}

Fallback fallback(const Transfer& transfer, const Scheme& scheme) noexcept {
  if (!scheme.has_parity())
    return {};
  const Cutting cutting(transfer);
  const auto chance = [&](Unit unit) {
    return -exponential_minus_1(log_all_decoded(transfer, cutting, scheme, unit));
  };
  return {chance(Unit::chunk), chance(Unit::packet)};
}

double mean_ns(const Transfer& transfer, const Scheme& scheme) noexcept {
  if (scheme.has_parity())
    return Coded(transfer, scheme).mean_ns();
  const Repeat repeat(transfer, Cutting(transfer), scheme);
  return ideal_ns(transfer) + repeat.rounds.mean_ns(repeat.pieces, repeat.spacing_ns);
}

Estimate estimate(const Transfer& transfer, const Scheme& scheme) noexcept {
  if (scheme.has_parity()) {
    const Coded coded(transfer, scheme);
    const auto exceeded = [&](double more) { return coded.longer_than(more); };
    const double longest = coded.longest_ns();
    return {coded.mean_ns(), coded.decoded_ns + quantile(exceeded, longest, beyond_p99),
            coded.decoded_ns + quantile(exceeded, longest, beyond_p999), coded.fallback,
            coded.sent()};
  }
  const double ideal = ideal_ns(transfer);
  const Repeat repeat(transfer, Cutting(transfer), scheme);
  const auto exceeded = [&](double tail) {
    return -exponential_minus_1(repeat.rounds.log_within(repeat.pieces, repeat.spacing_ns, tail));
  };
  const double longest = repeat.rounds.longest_ns(repeat.spacing_ns);
  return {ideal + repeat.rounds.mean_ns(repeat.pieces, repeat.spacing_ns),
          ideal + quantile(exceeded, longest, beyond_p99),
          ideal + quantile(exceeded, longest, beyond_p999), 0, repeat.transmissions()};
}

GoBackN go_back_n(const Transfer& transfer) noexcept {
  const Cutting cutting(transfer);
  const double loss = std::clamp(transfer.packet_loss, 0.0, most_loss);
  const double packet_ns = cutting.injection_ns / cutting.packets;
  const double sent = (1 + loss * transfer.rtt_ns / packet_ns) / (1 - loss);
  return {cutting.injection_ns * sent + transfer.rtt_ns, sent};
}

} // namespace adverb::reliability
