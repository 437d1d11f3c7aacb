// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "observe/trace_log.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace adverb::observe {

namespace {

int64_t nanoseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

TraceLog named(const PageHeader& header) {
  TraceLog log;
  log.pid = header.pid;
  log.program = std::string(header.program, strnlen(header.program, sizeof header.program));
  log.to_real_ns = nanoseconds(CLOCK_REALTIME) - nanoseconds(CLOCK_MONOTONIC);
  return log;
}

void sort(TraceLog& log) {
  std::ranges::sort(log.events, {}, &std::pair<uint64_t, TraceEvent>::first);
}

} // namespace

TraceLog trace_of(const PageHeader& header, const TraceRing& ring) {
  TraceLog log = named(header);
  TraceEvent event;
  uint64_t number = 0;
  for (const TraceSlot& slot : ring.slots)
    if (read_event(slot, event, number))
      log.events.emplace_back(number, event);
  sort(log);
  return log;
}

std::variant<TraceLog, SnapshotError> read_trace(const std::string& path) {
  const int fd = open_page(path);
  if (fd < 0)
    return cannot_open(path);
  auto read = read_trace(fd, path);
  close(fd);
  return read;
}

// A read copies in no order that is known. An event is whole if its sequence number was the same in
// the read before and is in the read after.
std::variant<TraceLog, SnapshotError> read_trace(int fd, const std::string& path) {
  std::array<std::unique_ptr<Page>, 3> pages;
  for (auto& page : pages) {
    auto read = read_page(fd, path);
    if (auto* failed = std::get_if<SnapshotError>(&read))
      return std::move(*failed);
    page = std::move(std::get<std::unique_ptr<Page>>(read));
  }
  TraceLog log = named(pages[1]->header);
  for (size_t i = 0; i < kTraceEvents; ++i) {
    const auto sequence = [&](size_t page) {
      return pages[page]->trace.slots[i].sequence.load(std::memory_order_relaxed);
    };
    TraceEvent event;
    uint64_t number = 0;
    if (sequence(0) == sequence(2) && read_event(pages[1]->trace.slots[i], event, number))
      log.events.emplace_back(number, event);
  }
  sort(log);
  return log;
}

std::variant<TraceLog, SnapshotError> read_trace_of_file(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    return cannot_open(path);
  try {
    const auto json = nlohmann::json::parse(file);
    const auto& trace = json.at("trace");
    if (trace.at("meaning") != kTraceMeaning)
      return SnapshotError{fmt::format("{}: its trace is of another version of adverb; use the "
                                       "`adverb` that came with that library",
                                       path)};
    TraceLog log;
    log.pid = json.at("pid");
    log.program = json.at("program");
    log.to_real_ns = trace.at("to_real_ns");
    for (const auto& of : trace.at("events")) {
      const TraceEvent event{.time_ns = of.at(1),
                             .qpn = of.at(2),
                             .kind = static_cast<TraceKind>(of.at(3).get<uint8_t>()),
                             .first = of.at(4),
                             .second = of.at(5),
                             .reason = of.at(6),
                             .key = of.at(7),
                             .address = of.at(8),
                             .bytes = of.at(9)};
      log.events.emplace_back(of.at(0).get<uint64_t>(), event);
    }
    sort(log);
    return log;
  } catch (const nlohmann::json::exception&) {
    return SnapshotError{
        fmt::format("{}: not a statistics file with a trace; a program writes one at its end if "
                    "ADVERB_STATS_FILE names it",
                    path)};
  }
}

std::string to_json(const Snapshot& snapshot, const TraceLog& log) {
  auto out = json_of(snapshot);
  auto& trace = out["trace"];
  trace["meaning"] = kTraceMeaning;
  trace["to_real_ns"] = log.to_real_ns;
  trace["events"] = nlohmann::ordered_json::array();
  for (const auto& [number, e] : log.events)
    trace["events"].push_back({number, e.time_ns, e.qpn, static_cast<uint8_t>(e.kind), e.first,
                               e.second, e.reason, e.key, e.address, e.bytes});
  return text_of(out, 2);
}

} // namespace adverb::observe
