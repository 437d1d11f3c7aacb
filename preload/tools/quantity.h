// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Times, bandwidths and chances as a person writes and reads them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace adverb::tools {

// What the parsers take, for messages and help.
inline constexpr std::string_view time_units = "ns, us, ms or s";
inline constexpr std::string_view bandwidth_units =
    "Kbit, Mbit, Gbit, Tbit, KB, MB, GB or TB, with or without /s";

std::optional<double> parse_time_ns(std::string_view text);   // "2.5ms" → 2500000
std::optional<double> parse_bandwidth(std::string_view text); // "400Gbit" → 50e9 bytes/s
std::optional<double> parse_chance(std::string_view text);    // "1e-4" or "0.01%"; from 0 to 1

std::string time_text(double nanoseconds);           // 25000000 → "25.00 ms", four digits
std::string short_time_text(double nanoseconds);     // 25000000 → "25 ms"
std::string bandwidth_text(double bytes_per_second); // 50e9 → "400 Gbit/s"
std::string chance_text(double chance);              // 0.00012 → "1.2e-04"

} // namespace adverb::tools
