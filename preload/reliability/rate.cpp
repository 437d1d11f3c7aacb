// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "reliability/rate.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace adverb::reliability {
namespace {

constexpr double first_packets = 10;   // in the first round trip
constexpr double first_guess = 1e-3;   // seconds: the round trip before one was seen
constexpr double growth = 2;           // of the rate in each round trip of the start
constexpr double grown = 1.25;         // deliveries of a round that count as growth
constexpr uint32_t rounds_to_stop = 3; // without growth
constexpr double relief = 0.7;
constexpr uint32_t rounds_to_drain = 2; // at a lower rate
constexpr uint64_t judged_least = 64;   // packets, before their losses say anything
constexpr double loss_memory = 2000;    // packets
constexpr double slowest_packets = 2;   // a round trip
// Gains over the best delivery rate, one a round: probe, drain, cruise.
constexpr std::array<double, 8> gains{1.25, 0.75, 1, 1, 1, 1, 1, 1};
constexpr double answered = 1.1;      // deliveries of a probe's round, by the best before
constexpr uint64_t window_least = 64; // packets

double seconds(Time t) noexcept {
  return std::chrono::duration<double>(t).count();
}

} // namespace

Rate::Rate(const RateOptions& options, Time round_trip) noexcept
    : options_(options), smoothed_(round_trip), shortest_(round_trip) {
  rate_ = options_.bytes_per_second > 0 ? options_.bytes_per_second
                                        : first_packets * options_.packet_bytes / first_guess;
}

Time Rate::timeout(double alpha) const noexcept {
  if (smoothed_ == Time{0})
    return std::chrono::milliseconds(200);
  const auto wanted =
      Time(static_cast<int64_t>(static_cast<double>(smoothed_.count()) * (1 + alpha)));
  return std::max(wanted, smoothed_ + 4 * variance_);
}

double Rate::delivery_rate() const noexcept {
  const double best = *std::max_element(delivered_.begin(), delivered_.end());
  return best > 0 && options_.bytes_per_second <= 0 ? best : rate_;
}

uint64_t Rate::window() const noexcept {
  if (options_.bytes_per_second > 0 || shortest_ == Time{0})
    return UINT64_MAX;
  const double packets = 2 * rate_ * seconds(shortest_) / options_.packet_bytes;
  return std::max(window_least, static_cast<uint64_t>(packets));
}

// As RFC 6298 does, section 2.
void Rate::learn_round_trip(Time now, Time seen) noexcept {
  if (seen <= Time{0})
    return;
  if (smoothed_ == Time{0}) {
    smoothed_ = seen;
    variance_ = seen / 2;
    round_began_ = now;
    if (options_.bytes_per_second <= 0)
      rate_ = std::max(rate_, first_packets * options_.packet_bytes / seconds(seen));
  } else {
    const Time off = smoothed_ > seen ? smoothed_ - seen : seen - smoothed_;
    variance_ += (off - variance_) / 4;
    smoothed_ += (seen - smoothed_) / 8;
  }
  shortest_ = shortest_ == Time{0} ? seen : std::min(shortest_, seen);
}

void LossMean::learn(uint64_t arrived, uint64_t lost) noexcept {
  const double seen = static_cast<double>(arrived) + static_cast<double>(lost);
  if (seen <= 0)
    return;
  const double weight = std::min(1.0, seen / loss_memory);
  share_ += (static_cast<double>(lost) / seen - share_) * weight;
}

void Rate::on_soundings(Time now, Time round_trip, uint64_t arrived, uint64_t lost,
                        uint64_t starved) noexcept {
  learn_round_trip(now, round_trip);
  loss_.learn(arrived, lost - std::min(lost, starved));
}

void Rate::on_feedback(Time now, Time round_trip, uint64_t arrived, uint64_t lost,
                       uint64_t starved) noexcept {
  learn_round_trip(now, round_trip);
  if (round_trip > Time{0})
    round_trip_in_round_ =
        round_trip_in_round_ == Time{0} ? round_trip : std::min(round_trip_in_round_, round_trip);
  // Losses at an empty receive queue say nothing of the network. The pace answers them, not parity.
  const uint64_t of_network = lost - std::min(lost, starved);
  loss_.learn(arrived, of_network);
  round_arrived_ += arrived;
  round_lost_ += of_network;
  if (starved != 0 && options_.bytes_per_second <= 0)
    starting_ = false;
  if (smoothed_ != Time{0} && now - round_began_ >= smoothed_)
    end_round(now);
}

// Whether packets wait on the path, as the round's shortest round trip shows. A queue of ours gets
// shorter when the rate is lowered. If it does not, the wait belongs to the path from here on, as
// after a change of route, or if the processors of an end have become busy.
bool Rate::is_queueing() noexcept {
  const Time before = std::exchange(queued_, round_trip_in_round_);
  if (round_trip_in_round_ <= 2 * shortest_ + std::chrono::milliseconds(1)) {
    rounds_of_queue_ = 0;
    return false;
  }
  if (rounds_of_queue_ >= rounds_to_drain && round_trip_in_round_ > before - before / 16) {
    shortest_ = round_trip_in_round_;
    rounds_of_queue_ = 0;
    return false;
  }
  ++rounds_of_queue_;
  return true;
}

// Few packets make a poor estimate of loss, so rounds of few are taken together, and three standard
// deviations are allowed.
bool Rate::is_losing() noexcept {
  if (judged_ < judged_least)
    return false;
  const auto judged = static_cast<double>(std::exchange(judged_, 0));
  const double lost = static_cast<double>(std::exchange(judged_lost_, 0)) / judged;
  const double allowed = options_.link_loss + loss_allowed;
  return lost > allowed + 3 * std::sqrt(allowed / judged);
}

void Rate::end_round(Time now) noexcept {
  const double took = seconds(now - round_began_);
  const double delivered = static_cast<double>(round_arrived_) * options_.packet_bytes / took;
  const uint64_t seen = round_arrived_ + round_lost_;
  judged_ += seen;
  judged_lost_ += round_lost_;
  const bool queueing = is_queueing();
  const bool was_idle = std::exchange(was_idle_, false);
  round_began_ = now;
  round_arrived_ = round_lost_ = 0;
  round_trip_in_round_ = Time{0};
  if (options_.bytes_per_second > 0 || seen == 0)
    return;
  const double before = *std::max_element(delivered_.begin(), delivered_.end());
  const bool tells = !was_idle || delivered > before; // what the path can do
  if (tells)
    delivered_.at(rounds_++ % delivered_.size()) = delivered;
  const double best = *std::max_element(delivered_.begin(), delivered_.end());
  const double least = slowest_packets * options_.packet_bytes / seconds(smoothed_);
  const bool losing = is_losing();
  if (starting_) {
    if (delivered >= grown * best_at_start_) {
      best_at_start_ = delivered;
      rounds_without_growth_ = 0;
    } else if (!was_idle) {
      ++rounds_without_growth_;
    }
    if (!queueing && !losing && rounds_without_growth_ < rounds_to_stop) {
      // What was not sent cannot be delivered: the rate doubles only if it was used.
      if (delivered >= rate_ / (was_idle ? growth : 2 * growth))
        rate_ *= growth;
      return;
    }
    starting_ = false;
  }
  if (queueing || losing) {
    rate_ = std::max(least, relief * std::min(rate_, best));
    delivered_.fill(rate_);
    gain_ = gains.size() - 1;
    return;
  }
  if (!tells)
    return;
  // What a probe has sent arrives in its round or the next. If it is more, there is another probe.
  const bool is_answered = gain_ <= 1 && delivered >= answered * before;
  gain_ = is_answered ? 0 : (gain_ + 1) % gains.size();
  rate_ = std::max(least, gains.at(gain_) * best);
}

} // namespace adverb::reliability
