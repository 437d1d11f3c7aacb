// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/plan_text.h"

#include "tools/quantity.h"

#include <algorithm>

#include <fmt/format.h>

namespace adverb::tools {
namespace {

using nlohmann::json;
using namespace reliability;

std::string time_cell(const std::optional<double>& nanoseconds) {
  return nanoseconds ? time_text(*nanoseconds) : "-";
}

struct Column {
  std::string_view title;
  std::string (*cell)(const PlanRow&);
};

constexpr Column columns[] = {
    {"scheme", [](const PlanRow& row) { return row.name; }},
    {"mean", [](const PlanRow& row) { return time_text(row.model.mean_ns); }},
    {"p99", [](const PlanRow& row) { return time_cell(row.model.p99_ns); }},
    {"p99.9", [](const PlanRow& row) { return time_cell(row.model.p999_ns); }},
    {"slowdown", [](const PlanRow& row) { return fmt::format("{:.3f}", row.slowdown); }},
    {"sent", [](const PlanRow& row) { return fmt::format("{:.3f}", row.sent); }},
    {"fallback",
     [](const PlanRow& row) {
       return row.fallback ? chance_text(row.fallback->by_column) : std::string("-");
     }},
};

// "99.56 ms", "99.32 .. 99.80 ms": an end that is not known is a dash.
std::string interval_cell(const Sampled& sampled) {
  return time_text(sampled.low) + " .. " + time_cell(sampled.high);
}

// "99.56 ms +- 240 us".
std::string mean_cell(const Sampled& mean) {
  return time_text(mean.value) + " +- " +
         (mean.high ? short_time_text(*mean.high - mean.value) : "-");
}

std::string simulated_mean(const PlanRow& row) {
  if (row.simulated)
    return time_text(row.simulated->mean_ns.value);
  return row.scheme ? "given up" : "-";
}

template <Sampled SimulatedFigures::* figure> std::string value_cell(const PlanRow& row) {
  return row.simulated ? time_text(((*row.simulated).*figure).value) : "-";
}
template <Sampled SimulatedFigures::* figure> std::string interval_cell(const PlanRow& row) {
  return row.simulated ? interval_cell((*row.simulated).*figure) : "-";
}

// Behind the others, if messages were simulated.
constexpr Column simulated_columns[] = {
    {"simulated", simulated_mean},
    {"95 %", interval_cell<&SimulatedFigures::mean_ns>},
    {"p99", value_cell<&SimulatedFigures::p99_ns>},
    {"95 %", interval_cell<&SimulatedFigures::p99_ns>},
    {"p99.9", value_cell<&SimulatedFigures::p999_ns>},
    {"95 %", interval_cell<&SimulatedFigures::p999_ns>},
};

using Line = std::vector<std::string>;

// The first column to the left, the others to the right.
void print_table(const std::vector<Line>& lines) {
  std::vector<size_t> widths(lines[0].size());
  for (const Line& line : lines)
    for (size_t i = 0; i < line.size(); ++i)
      widths[i] = std::max(widths[i], line[i].size());
  for (const Line& line : lines) {
    fmt::print("{:<{}}", line[0], widths[0]);
    for (size_t i = 1; i < line.size(); ++i)
      fmt::print("  {:>{}}", line[i], widths[i]);
    fmt::print("\n");
  }
}

json simulated_json(const SimulatedFigures& figures) {
  json out = {{"messages", figures.messages}, {"sent", figures.sent}};
  const auto add = [&out](const char* name, const Sampled& sampled) {
    out[name] = {{"value", sampled.value},
                 {"low", sampled.low},
                 {"high", sampled.high ? json(*sampled.high) : json(nullptr)}};
  };
  add("mean_ns", figures.mean_ns);
  add("p99_ns", figures.p99_ns);
  add("p999_ns", figures.p999_ns);
  return out;
}

json simulated_json(const std::optional<SimulatedFigures>& figures) {
  return figures ? simulated_json(*figures) : json(nullptr);
}

json figures_json(const Figures& figures) {
  const auto number = [](const std::optional<double>& value) {
    return value ? json(*value) : json(nullptr);
  };
  return {{"mean_ns", figures.mean_ns},
          {"p99_ns", number(figures.p99_ns)},
          {"p999_ns", number(figures.p999_ns)}};
}

} // namespace

void print_rows(const Transfer& transfer, std::span<const PlanRow> rows, uint64_t simulated) {
  fmt::print("{}\n", inputs_text(transfer, std::nullopt));
  std::vector<Column> shown(std::begin(columns), std::end(columns));
  if (simulated != 0) {
    fmt::print("simulated: {} messages of each scheme\n", simulated);
    shown.insert(shown.end(), std::begin(simulated_columns), std::end(simulated_columns));
  }
  fmt::print("\n");
  std::vector<Line> lines(1);
  for (const Column& column : shown)
    lines[0].emplace_back(column.title);
  for (const PlanRow& row : rows) {
    Line& line = lines.emplace_back();
    for (const Column& column : shown)
      line.push_back(column.cell(row));
  }
  print_table(lines);
  const Choice choice = choose_scheme(transfer);
  fmt::print("\nauto would choose {}: mean {}\n", scheme_name(choice.scheme),
             time_text(choice.mean_ns));
}

json rows_json(const Transfer& transfer, std::span<const PlanRow> rows, uint64_t simulated) {
  json schemes = json::array();
  for (const PlanRow& row : rows) {
    json entry = {{"name", row.name},
                  {"model", figures_json(row.model)},
                  {"slowdown", row.slowdown},
                  {"sent", row.sent}};
    if (row.fallback) {
      entry["fallback"] = row.fallback->by_column;
      entry["fallback_by_chunk"] = row.fallback->by_chunk;
    }
    if (simulated != 0 && row.scheme)
      entry["simulated"] = simulated_json(row.simulated);
    schemes.push_back(std::move(entry));
  }
  const Choice choice = choose_scheme(transfer);
  return {{"message_bytes", transfer.message_bytes},
          {"rtt_ns", transfer.rtt_ns},
          {"packet_loss", transfer.packet_loss},
          {"chunk_loss", chunk_loss(transfer)},
          {"schemes", schemes},
          {"auto", {{"name", scheme_name(choice.scheme)}, {"mean_ns", choice.mean_ns}}}};
}

void print_sweep(Sweep sweep, const Transfer& base, std::span<const std::string> names,
                 std::span<const SweepPoint> points) {
  fmt::print("mean by {}; {}\n\n", sweep_title(sweep), inputs_text(base, sweep));
  std::vector<Line> lines(1);
  lines[0].emplace_back(sweep_title(sweep));
  lines[0].insert(lines[0].end(), names.begin(), names.end());
  lines[0].emplace_back("auto");
  for (const SweepPoint& point : points) {
    Line& line = lines.emplace_back();
    line.push_back(point.label);
    for (const double mean : point.mean_ns)
      line.push_back(time_text(mean));
    line.push_back(point.chosen);
  }
  print_table(lines);
}

void print_simulated(std::span<const std::string> names, std::span<const SweepPoint> points,
                     uint64_t simulated) {
  fmt::print("\nthe same of {} simulated messages each, +- half of the 95 % interval\n\n",
             simulated);
  std::vector<Line> lines(1);
  lines[0].emplace_back("");
  lines[0].insert(lines[0].end(), names.begin() + sweep_formulas, names.end());
  for (const SweepPoint& point : points) {
    Line& line = lines.emplace_back();
    line.push_back(point.label);
    for (size_t i = sweep_formulas; i < names.size(); ++i) {
      const auto& figures = point.simulated[i];
      line.push_back(figures ? mean_cell(figures->mean_ns) : "given up");
    }
  }
  print_table(lines);
}

json sweep_json(std::span<const std::string> names, std::span<const SweepPoint> points) {
  json list = json::array();
  for (const SweepPoint& point : points) {
    json means = json::object();
    for (size_t i = 0; i < names.size(); ++i)
      means[names[i]] = point.mean_ns[i];
    list.push_back({{"value", point.value}, {"mean_ns", means}, {"auto", point.chosen}});
    for (size_t i = sweep_formulas; i < point.simulated.size(); ++i)
      list.back()["simulated"][names[i]] = simulated_json(point.simulated[i]);
  }
  return list;
}

} // namespace adverb::tools
