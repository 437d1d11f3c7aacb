// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What `adverb plan` compares: schemes, and the figures of each.
#pragma once

#include "reliability/choose.h"
#include "tools/plan_simulation.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace adverb::tools {

// Completion times of one scheme by the model, which may not know the quantiles.
struct Figures {
  double mean_ns = 0;
  std::optional<double> p99_ns;
  std::optional<double> p999_ns;
};

// A scheme's line.
struct PlanRow {
  std::string name;                          // "MDS 32,8"
  std::optional<reliability::Scheme> scheme; // of the library; nothing: it is a formula alone
  Figures model;
  double slowdown = 1; // of the model's mean over the ideal time
  double sent = 1;     // bytes on the wire over bytes of the message
  std::optional<reliability::Fallback> fallback;
  std::optional<SimulatedFigures> simulated; // by simulate_rows(); nothing: a message was given up
};

// "SR NACK, packet", "MDS 32,8".
std::string scheme_name(const reliability::Scheme& scheme);

// The codes of a plan whose user names none.
std::span<const reliability::Scheme> default_codes();

// Ideal, go-back-N, selective repeat in all its variants, the codes, and what the library would
// choose if it is none of these, in this order.
std::vector<PlanRow> plan_rows(const reliability::Transfer& transfer,
                               std::span<const reliability::Scheme> codes);

// Adds figures of so many simulated messages to each row with a scheme. The transfer can be
// simulated with each (can_simulate()).
void simulate_rows(const reliability::Transfer& transfer, uint64_t messages,
                   std::span<PlanRow> rows);

// An input that takes many values, from the least on.
enum class Sweep { loss, size, rtt };

struct SweepPoint {
  std::string label; // of the input's value
  bool tick = false; // one of the labels of an axis
  double value = 0;  // a chance, bytes, nanoseconds
  reliability::Transfer transfer;
  std::vector<double> mean_ns; // as sweep_names()
  std::string chosen;          // by the library
  // By simulate_points(), as sweep_names(): nothing for a formula, and for messages given up.
  std::vector<std::optional<SimulatedFigures>> simulated;
};

std::optional<Sweep> parse_sweep(std::string_view word);
// "packet loss", "message size", "round trip".
std::string_view sweep_title(Sweep sweep);
// Schemes of a sweep: ideal and go-back-N, which are formulas, and those that the library has.
inline constexpr size_t sweep_formulas = 2;
std::vector<std::string> sweep_names(std::span<const reliability::Scheme> codes);
std::vector<reliability::Scheme> sweep_schemes(std::span<const reliability::Scheme> codes);
// `base` gives the other inputs.
std::vector<SweepPoint> sweep_points(Sweep sweep, const reliability::Transfer& base,
                                     std::span<const reliability::Scheme> codes);
// Adds figures of so many simulated messages to each point and scheme.
void simulate_points(std::span<const reliability::Scheme> codes, uint64_t messages,
                     std::span<SweepPoint> points);

// "128MiB in chunks of 64KiB, ...", without the input that is swept.
std::string inputs_text(const reliability::Transfer& transfer, std::optional<Sweep> sweep);

} // namespace adverb::tools
