// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How fast one peer is sent to. A rate that the program or the policy names is kept. Otherwise the
// controller starts at ten packets a round trip and probes for the rate at which packets arrive, as
// BBR does (Cardwell et al., ACM Queue 14(5), 2016): the rate doubles each round trip until
// deliveries stop to grow, then follows the best delivery rate of ten round trips. Each eighth
// round is a probe at a quarter more; if a tenth more arrives in it or in the round behind it,
// there is another probe. A queue as long as the path, or loss above what the link is known to
// lose, takes 30 % off. A longer round trip that a lower rate does not shorten is the path's. A
// round in which there was nothing to send says what was wanted, and not what the path can do: it
// counts only where more arrived than ever.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace adverb::reliability {

using Time = std::chrono::nanoseconds; // since some moment of one steady clock

// Share of packets above link_loss that may be lost before the rate falls.
inline constexpr double loss_allowed = 0.02;

struct RateOptions {
  double bytes_per_second = 0; // 0: found out by probing
  double link_loss = 0;        // share of packets that the link is known to lose
  uint32_t packet_bytes = 4096;
};

// Share of packets that are lost: a moving mean over about 2,000 of them.
class LossMean {
public:
  void learn(uint64_t arrived, uint64_t lost) noexcept;
  double share() const noexcept { return share_; }

private:
  double share_ = 0;
};

class Rate {
public:
  // `round_trip`: 0 if nothing is known of it.
  explicit Rate(const RateOptions& options, Time round_trip = Time{0}) noexcept;

  // A round trip was seen; so many packets arrived and so many were lost since the last call.
  // `starved`: of the lost packets, those that may have met an empty receive queue.
  void on_feedback(Time now, Time round_trip, uint64_t arrived, uint64_t lost,
                   uint64_t starved) noexcept;

  // The same of packets without payload that were sent because there was nothing to send: they tell
  // of round trip and loss, and nothing of how many bytes the path takes.
  void on_soundings(Time now, Time round_trip, uint64_t arrived, uint64_t lost,
                    uint64_t starved) noexcept;

  // There is nothing to send just now, though the pace and the window would let it go.
  void on_idle() noexcept { was_idle_ = true; }

  double bytes_per_second() const noexcept { return rate_; }
  // The most that has arrived in one of the last ten rounds; before the first, what is sent.
  double delivery_rate() const noexcept;
  Time smoothed_round_trip() const noexcept { return smoothed_; } // 0: none was seen
  Time shortest_round_trip() const noexcept { return shortest_; }
  // After so long without a report, (1 + alpha) round trips and the variance seen, a packet is
  // taken for lost.
  Time timeout(double alpha) const noexcept;
  // Packets that may be under way; no limit while the rate is fixed.
  uint64_t window() const noexcept;
  double loss() const noexcept { return loss_.share(); }

private:
  void learn_round_trip(Time now, Time seen) noexcept;
  bool is_queueing() noexcept;
  bool is_losing() noexcept;
  void end_round(Time now) noexcept;

  RateOptions options_;
  double rate_ = 0;
  Time smoothed_{0};
  Time variance_{0};
  Time shortest_{0};
  LossMean loss_;
  // The current round trip.
  Time round_began_{0};
  uint64_t round_arrived_ = 0;
  uint64_t round_lost_ = 0;
  bool was_idle_ = false;
  uint64_t judged_ = 0; // packets whose losses are not judged yet
  uint64_t judged_lost_ = 0;
  Time round_trip_in_round_{0};        // the shortest in it
  Time queued_{0};                     // that of the round before
  uint32_t rounds_of_queue_ = 0;       // one after the other
  std::array<double, 10> delivered_{}; // bytes per second of the last rounds
  size_t rounds_ = 0;
  size_t gain_ = 0; // of those over the best delivery rate
  bool starting_ = true;
  double best_at_start_ = 0;
  uint32_t rounds_without_growth_ = 0;
};

} // namespace adverb::reliability
