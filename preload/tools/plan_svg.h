// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A line plot of a sweep as SVG: log axes, a legend; lines differ by dashes and markers as well as
// by colour. Simulated means are rings with whiskers. The text is XML without script, style sheet
// or reference to another file.
#pragma once

#include "tools/plan_rows.h"

namespace adverb::tools {

// The points have at least two values of the swept input, all above 0.
std::string sweep_svg(Sweep sweep, const reliability::Transfer& base,
                      std::span<const std::string> names, std::span<const SweepPoint> points);

} // namespace adverb::tools
