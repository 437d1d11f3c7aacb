// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/quantity.h"

#include <charconv>
#include <span>

#include <fmt/format.h>

namespace adverb::tools {
namespace {

struct Scale {
  std::string_view name;
  double factor;
};

// From the smallest on.
constexpr Scale times[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
constexpr Scale bandwidths[] = {
    {"Kbit", 1e3 / 8}, {"Mbit", 1e6 / 8}, {"Gbit", 1e9 / 8}, {"Tbit", 1e12 / 8},
    {"KB", 1e3},       {"MB", 1e6},       {"GB", 1e9},       {"TB", 1e12},
};
constexpr Scale chances[] = {{"", 1}, {"%", 0.01}};

// A decimal number from 0 on with one of the units behind it.
std::optional<double> parse_scaled(std::string_view text, std::span<const Scale> units) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, number);
  if (failure != std::errc{} || !(number >= 0 && number < 1e18))
    return std::nullopt;
  const std::string_view rest(stop, static_cast<size_t>(end - stop));
  for (const Scale& unit : units)
    if (rest == unit.name)
      return number * unit.factor;
  return std::nullopt;
}

// The largest of the units that leaves 1 or more.
const Scale& unit_of(double value, std::span<const Scale> units) {
  const Scale* best = &units[0];
  for (const Scale& unit : units)
    if (value >= unit.factor)
      best = &unit;
  return *best;
}

} // namespace

std::optional<double> parse_time_ns(std::string_view text) {
  return parse_scaled(text, times);
}

std::optional<double> parse_bandwidth(std::string_view text) {
  if (text.ends_with("/s"))
    text.remove_suffix(2);
  return parse_scaled(text, bandwidths);
}

std::optional<double> parse_chance(std::string_view text) {
  const auto chance = parse_scaled(text, chances);
  return chance && *chance <= 1 ? chance : std::nullopt;
}

std::string time_text(double nanoseconds) {
  const Scale& unit = unit_of(nanoseconds, times);
  const double scaled = nanoseconds / unit.factor;
  if (scaled >= 1e6)
    return fmt::format("{:.2e} {}", scaled, unit.name);
  const int decimals = scaled < 9.9995 ? 3 : scaled < 99.995 ? 2 : scaled < 999.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", scaled, decimals, unit.name);
}

std::string short_time_text(double nanoseconds) {
  const Scale& unit = unit_of(nanoseconds, times);
  return fmt::format("{:.4g} {}", nanoseconds / unit.factor, unit.name);
}

std::string bandwidth_text(double bytes_per_second) {
  constexpr size_t of_bits = 4;
  const Scale& unit = unit_of(bytes_per_second, std::span(bandwidths).first(of_bits));
  return fmt::format("{:.4g} {}/s", bytes_per_second / unit.factor, unit.name);
}

std::string chance_text(double chance) {
  if (chance == 0 || chance == 1)
    return fmt::format("{:.0f}", chance);
  return chance >= 0.001 ? fmt::format("{:.2g} %", 100 * chance) : fmt::format("{:.1e}", chance);
}

} // namespace adverb::tools
