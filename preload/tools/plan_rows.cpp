// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/plan_rows.h"

#include "policy/format.h"
#include "tools/quantity.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace adverb::tools {
namespace {

using namespace reliability;

constexpr Scheme repeats[] = {
    {.detection = Detection::timeout, .unit = Unit::chunk},
    {.detection = Detection::nack, .unit = Unit::chunk},
    {.detection = Detection::timeout, .unit = Unit::packet},
    {.detection = Detection::nack, .unit = Unit::packet},
};

PlanRow row_of(const Transfer& transfer, const Scheme& scheme) {
  const Estimate found = estimate(transfer, scheme);
  PlanRow row{.name = scheme_name(scheme),
              .scheme = scheme,
              .model = {found.mean_ns, found.p99_ns, found.p999_ns},
              .slowdown = found.mean_ns / ideal_ns(transfer),
              .sent = found.sent,
              .fallback = {},
              .simulated = {}};
  if (scheme.has_parity())
    row.fallback = fallback(transfer, scheme);
  return row;
}

struct SweepRange {
  Sweep sweep;
  std::string_view word;
  std::string_view title;
  double first, last;
};
constexpr SweepRange ranges[] = {
    {Sweep::loss, "loss", "packet loss", 1e-7, 1e-1},
    {Sweep::size, "size", "message size", 64.0 * 1024, 16.0 * 1024 * 1024 * 1024},
    {Sweep::rtt, "rtt", "round trip", 1e4, 2e8},
};

const SweepRange& range_of(Sweep sweep) {
  return ranges[static_cast<size_t>(sweep)];
}

SweepPoint point_of(Sweep sweep, double value, const Transfer& base) {
  SweepPoint point{.label = {},
                   .tick = false,
                   .value = value,
                   .transfer = base,
                   .mean_ns = {},
                   .chosen = {},
                   .simulated = {}};
  switch (sweep) {
  case Sweep::loss:
    point.transfer.packet_loss = value;
    point.label = fmt::format("{:.0e}", value);
    break;
  case Sweep::size:
    point.transfer.message_bytes = static_cast<uint64_t>(value);
    point.label = policy::size_text(point.transfer.message_bytes);
    break;
  case Sweep::rtt:
    point.transfer.rtt_ns = value;
    point.label = short_time_text(value);
    break;
  }
  return point;
}

// Each size is 4 times the one before; others go 1, 2, 5, 10. Labels of an axis: each second size,
// each power of ten.
std::vector<SweepPoint> values_of(Sweep sweep, const Transfer& base) {
  const SweepRange& range = range_of(sweep);
  constexpr double rounding = 1 + 1e-9;
  std::vector<SweepPoint> points;
  for (double decade = range.first; decade <= range.last * rounding;
       decade *= sweep == Sweep::size ? 16 : 10) {
    const auto steps = sweep == Sweep::size ? std::array{1, 4, 16} : std::array{1, 2, 5};
    for (const int step : steps) {
      const bool next_decade = step == 16;
      if (next_decade || decade * step > range.last * rounding)
        continue;
      points.push_back(point_of(sweep, decade * step, base));
      points.back().tick = step == 1;
    }
  }
  return points;
}

} // namespace

std::string scheme_name(const Scheme& scheme) {
  if (scheme.has_parity())
    return fmt::format("{} {},{}", scheme.parity == Parity::mds ? "MDS" : "XOR", scheme.k,
                       scheme.m);
  return fmt::format("SR {}, {}", scheme.detection == Detection::nack ? "NACK" : "timeout",
                     scheme.unit == Unit::packet ? "packet" : "chunk");
}

std::span<const Scheme> default_codes() {
  static constexpr std::array<Scheme, 2> codes = {{
      {.parity = Parity::xor_parity, .k = 32, .m = 8},
      {.parity = Parity::mds, .k = 32, .m = 8},
  }};
  return codes;
}

std::vector<PlanRow> plan_rows(const Transfer& transfer, std::span<const Scheme> codes) {
  const double ideal = ideal_ns(transfer);
  const GoBackN whole_window = go_back_n(transfer);
  std::vector<PlanRow> rows = {
      {.name = "ideal",
       .scheme = {},
       .model = {ideal, ideal, ideal},
       .slowdown = 1,
       .sent = 1,
       .fallback = {},
       .simulated = {}},
      {.name = "go-back-N",
       .scheme = {},
       .model = {.mean_ns = whole_window.mean_ns, .p99_ns = {}, .p999_ns = {}},
       .slowdown = whole_window.mean_ns / ideal,
       .sent = whole_window.sent,
       .fallback = {},
       .simulated = {}},
  };
  for (const Scheme& scheme : repeats)
    rows.push_back(row_of(transfer, scheme));
  for (const Scheme& scheme : codes)
    rows.push_back(row_of(transfer, scheme));
  const Scheme chosen = choose_scheme(transfer).scheme;
  if (std::ranges::find(rows, scheme_name(chosen), &PlanRow::name) == rows.end())
    rows.push_back(row_of(transfer, chosen));
  return rows;
}

void simulate_rows(const Transfer& transfer, uint64_t messages, std::span<PlanRow> rows) {
  for (PlanRow& row : rows)
    if (row.scheme)
      row.simulated = simulate(transfer, *row.scheme, {.messages = messages, .report_loss = {}});
}

std::optional<Sweep> parse_sweep(std::string_view word) {
  for (const SweepRange& range : ranges)
    if (range.word == word)
      return range.sweep;
  return std::nullopt;
}

std::string_view sweep_title(Sweep sweep) {
  return range_of(sweep).title;
}

std::vector<Scheme> sweep_schemes(std::span<const Scheme> codes) {
  std::vector<Scheme> schemes;
  for (const Scheme& scheme : repeats)
    if (scheme.unit == Unit::packet)
      schemes.push_back(scheme);
  schemes.insert(schemes.end(), codes.begin(), codes.end());
  return schemes;
}

std::vector<std::string> sweep_names(std::span<const Scheme> codes) {
  std::vector<std::string> names = {"ideal", "go-back-N"};
  static_assert(sweep_formulas == 2);
  for (const Scheme& scheme : sweep_schemes(codes))
    names.push_back(scheme_name(scheme));
  return names;
}

std::vector<SweepPoint> sweep_points(Sweep sweep, const Transfer& base,
                                     std::span<const Scheme> codes) {
  std::vector<SweepPoint> points = values_of(sweep, base);
  const std::vector<Scheme> schemes = sweep_schemes(codes);
  for (SweepPoint& point : points) {
    const Transfer& transfer = point.transfer;
    point.mean_ns = {ideal_ns(transfer), go_back_n(transfer).mean_ns};
    for (const Scheme& scheme : schemes)
      point.mean_ns.push_back(mean_ns(transfer, scheme));
    point.chosen = scheme_name(choose_scheme(transfer).scheme);
  }
  return points;
}

void simulate_points(std::span<const Scheme> codes, uint64_t messages,
                     std::span<SweepPoint> points) {
  for (SweepPoint& point : points) {
    point.simulated.resize(sweep_formulas);
    for (const Scheme& scheme : sweep_schemes(codes))
      point.simulated.push_back(
          simulate(point.transfer, scheme, {.messages = messages, .report_loss = {}}));
  }
}

std::string inputs_text(const Transfer& transfer, std::optional<Sweep> sweep) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (sweep != Sweep::size)
    add(policy::size_text(transfer.message_bytes));
  add("chunks of " + policy::size_text(transfer.chunk_bytes));
  add(fmt::format("packets of {} bytes", transfer.packet_bytes));
  add(bandwidth_text(transfer.bytes_per_second));
  if (sweep != Sweep::rtt)
    add("round trip " + short_time_text(transfer.rtt_ns));
  if (sweep != Sweep::loss)
    add(fmt::format("packet loss {} (chunk loss {})", chance_text(transfer.packet_loss),
                    chance_text(chunk_loss(transfer))));
  return text;
}

} // namespace adverb::tools
