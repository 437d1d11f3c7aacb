// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Completion times of many simulated messages: mean and quantiles, and how far they may be from
// those of all messages. Each message goes by itself over an idle link, from the library's own
// sender to its own receiver (reliability/simulation.h).
#pragma once

#include "reliability/model.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace adverb::tools {

struct Campaign {
  uint64_t messages = 0; // above 1: one says nothing of the spread
  uint64_t seed = 1;     // the same seed gives the same figures, whatever processors there are
  std::optional<double> report_loss; // the chance of a report; as of a packet if it is not set
};

// A value, and the 95 % interval of what it estimates. Few messages say nothing of the upper end of
// a high quantile.
struct Sampled {
  double value = 0;
  double low = 0;
  std::optional<double> high;
};

struct SimulatedFigures {
  uint64_t messages = 0;
  Sampled mean_ns; // value +- 1.96 standard errors
  Sampled p99_ns;  // an order statistic, and two of them around it by the binomial distribution
  Sampled p999_ns;
  double sent = 1; // bytes on the wire over bytes of the message
};

// Whether the numbers of a message's packets, those of its parity included, and its times fit the
// simulation: at most 2^27 packets, 30 days without loss.
bool can_simulate(const reliability::Transfer& transfer, const reliability::Scheme& scheme);

// Nothing if a message was given up. Works on all processors that this process may use. The
// transfer can be simulated and the scheme is valid(). `alpha` and the losses are the transfer's.
std::optional<SimulatedFigures> simulate(const reliability::Transfer& transfer,
                                         const reliability::Scheme& scheme,
                                         const Campaign& campaign);

// The figures of completion times in nanoseconds, of which there are at least two. `sent` is not
// set. Sorts the times.
SimulatedFigures figures_of(std::vector<double>& times);

} // namespace adverb::tools
