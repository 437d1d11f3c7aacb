// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The tables of `adverb plan`, and the same as JSON.
#pragma once

#include "tools/plan_rows.h"

#include <nlohmann/json.hpp>

namespace adverb::tools {

// One message: a line for each scheme, and what the library would choose. `simulated`: the messages
// of simulate_rows(), 0 if there are none.
void print_rows(const reliability::Transfer& transfer, std::span<const PlanRow> rows,
                uint64_t simulated);
nlohmann::json rows_json(const reliability::Transfer& transfer, std::span<const PlanRow> rows,
                         uint64_t simulated);

// A line for each value of the swept input, with the means.
void print_sweep(Sweep sweep, const reliability::Transfer& base, std::span<const std::string> names,
                 std::span<const SweepPoint> points);
// What simulate_points() has found, as a table of its own.
void print_simulated(std::span<const std::string> names, std::span<const SweepPoint> points,
                     uint64_t simulated);
nlohmann::json sweep_json(std::span<const std::string> names, std::span<const SweepPoint> points);

} // namespace adverb::tools
