// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "reliability/rounds.h"

#include "reliability/elementary.h"

#include <algorithm>
#include <cstdint>

namespace adverb::reliability {
namespace {

constexpr double negligible_log = -39; // e^-39 is 1e-17

// The mean of 1 - e^g where g goes from one value to the other in a straight line.
double mean_missing(double from, double to) noexcept {
  const double step = to - from;
  if (step < 1e-4) // where e^g is straight to 1e-9, and a difference would cancel
    return -(exponential_minus_1(from) + exponential_minus_1(to)) / 2;
  return 1 - (exponential(to) - exponential(from)) / step;
}

} // namespace

Rounds::Rounds(double log_loss, double interval_ns, double most_pieces) noexcept {
  const double rounds = std::max(1.0, (negligible_log - logarithm(most_pieces)) / log_loss);
  const double rounds_per_cell =
      rounds <= most_cells ? 1
                           : static_cast<double>(static_cast<uint64_t>(rounds / most_cells) + 1);
  cells_ = std::min(most_cells, static_cast<size_t>(rounds / rounds_per_cell) + 1);
  cell_ns_ = interval_ns * rounds_per_cell;
  for (size_t cell = cells_; cell-- > 0;) {
    // Transmissions of a piece by then: of one round, all; of several, the middle of their numbers.
    const double sent = static_cast<double>(cell) * rounds_per_cell + (rounds_per_cell + 1) / 2;
    const double missing = -logarithm_plus_1(-exponential(sent * log_loss));
    beyond_[cell] = beyond_[cell + 1] + missing * cell_ns_;
  }
}

double Rounds::missing_beyond(double from_ns) const noexcept {
  const double at = std::max(0.0, from_ns / cell_ns_);
  if (at >= static_cast<double>(cells_))
    return 0;
  const auto cell = static_cast<size_t>(at);
  const double part = at - static_cast<double>(cell);
  const double here = beyond_[cell] + part * (beyond_[cell + 1] - beyond_[cell]);
  // Half a spacing before a piece's first transmission counts as the first round.
  return from_ns < 0 ? here - from_ns / cell_ns_ * (beyond_[0] - beyond_[1]) : here;
}

double Rounds::log_within(double pieces, double spacing_ns, double tail_ns) const noexcept {
  const double youngest = tail_ns - spacing_ns / 2;
  return (missing_beyond(youngest + pieces * spacing_ns) - missing_beyond(youngest)) / spacing_ns;
}

double Rounds::mean_ns(double pieces, double spacing_ns) const noexcept {
  if (beyond_[0] == 0 || pieces <= 0)
    return 0;
  // log_within() is straight but where the youngest or the oldest piece enters another cell.
  const double youngest = -spacing_ns / 2, oldest = youngest + pieces * spacing_ns;
  const auto cells = static_cast<double>(cells_);
  double next_of_youngest = 0;
  double next_of_oldest = oldest / cell_ns_ >= cells
                              ? cells + 1
                              : static_cast<double>(static_cast<uint64_t>(oldest / cell_ns_) + 1);
  double at = 0, log_at = log_within(pieces, spacing_ns, 0), sum = 0;
  while (next_of_youngest <= cells) {
    const double by_youngest = next_of_youngest * cell_ns_ - youngest;
    const double by_oldest = next_of_oldest * cell_ns_ - oldest;
    const bool older_first = next_of_oldest <= cells && by_oldest < by_youngest;
    const double next = older_first ? by_oldest : by_youngest;
    (older_first ? next_of_oldest : next_of_youngest) += 1;
    const double log_next = log_within(pieces, spacing_ns, next);
    sum += (next - at) * mean_missing(log_at, log_next);
    at = next;
    log_at = log_next;
  }
  return sum;
}

} // namespace adverb::reliability
