// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "observe/trace_log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <limits>
#include <memory>
#include <optional>
#include <sys/stat.h>
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
  const int64_t now = nanoseconds(CLOCK_MONOTONIC);
  log.taken_ns = static_cast<uint64_t>(now);
  log.to_real_ns = nanoseconds(CLOCK_REALTIME) - now;
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

namespace {

constexpr off_t file_most = 64 << 20; // bytes of a statistics file

/// Nothing that is no file, such as a pipe, is waited for. Nullopt and errno.
std::optional<std::string> text_of_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0)
    return std::nullopt;
  struct stat now{};
  std::string text;
  int why = fstat(fd, &now) != 0 ? errno : S_ISREG(now.st_mode) ? 0 : EINVAL;
  why = why == 0 && now.st_size > file_most ? EFBIG : why;
  if (why == 0) {
    text.resize(static_cast<size_t>(now.st_size));
    const ssize_t got = pread(fd, text.data(), text.size(), 0);
    why = got < 0 ? errno : 0;
    text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  }
  close(fd);
  errno = why;
  return why == 0 ? std::optional(std::move(text)) : std::nullopt;
}

/// A number of the type; false: it is none.
template <typename T> bool read_number(const nlohmann::json& of, T& to) {
  if (of.is_number_unsigned() && of.get<uint64_t>() <= uint64_t{std::numeric_limits<T>::max()}) {
    to = of.get<T>();
    return true;
  }
  return false;
}

bool read_event(const nlohmann::json& of, std::pair<uint64_t, TraceEvent>& to) {
  auto& [number, e] = to;
  uint8_t kind = 0;
  const bool good = of.size() == 10 && read_number(of.at(0), number) &&
                    read_number(of.at(1), e.time_ns) && read_number(of.at(2), e.qpn) &&
                    read_number(of.at(3), kind) && read_number(of.at(4), e.first) &&
                    read_number(of.at(5), e.second) && read_number(of.at(6), e.reason) &&
                    read_number(of.at(7), e.key) && read_number(of.at(8), e.address) &&
                    read_number(of.at(9), e.bytes);
  e.kind = static_cast<TraceKind>(kind);
  return good;
}

} // namespace

std::variant<TraceLog, SnapshotError> read_trace_of_file(const std::string& path) {
  const auto text = text_of_file(path);
  if (!text)
    return cannot_open(path);
  TraceLog log;
  bool good = false;
  try {
    const auto json = nlohmann::json::parse(*text);
    const auto& trace = json.at("trace");
    if (trace.at("meaning") != kTraceMeaning)
      return SnapshotError{fmt::format("{}: its trace is of another version of adverb; use the "
                                       "`adverb` that came with that library",
                                       path)};
    uint64_t to_real = 0; // later than the start of the clock: it is no less than 0
    good = read_number(json.at("pid"), log.pid) &&
           read_number(trace.at("taken_ns"), log.taken_ns) &&
           read_number(trace.at("to_real_ns"), to_real) && to_real <= INT64_MAX;
    log.to_real_ns = static_cast<int64_t>(to_real & INT64_MAX);
    log.program = json.at("program");
    for (const auto& of : trace.at("events")) {
      std::pair<uint64_t, TraceEvent> event;
      good = good && read_event(of, event);
      log.events.push_back(event);
    }
  } catch (const nlohmann::json::exception&) {
    good = false;
  }
  if (!good)
    return SnapshotError{
        fmt::format("{}: not a statistics file with a trace; a program writes one at its end if "
                    "ADVERB_STATS_FILE names it",
                    path)};
  sort(log);
  return log;
}

std::string to_json(const Snapshot& snapshot, const TraceLog& log) {
  auto out = json_of(snapshot);
  auto& trace = out["trace"];
  trace["meaning"] = kTraceMeaning;
  trace["taken_ns"] = log.taken_ns;
  trace["to_real_ns"] = log.to_real_ns;
  trace["events"] = nlohmann::ordered_json::array();
  for (const auto& [number, e] : log.events)
    trace["events"].push_back({number, e.time_ns, e.qpn, static_cast<uint8_t>(e.kind), e.first,
                               e.second, e.reason, e.key, e.address, e.bytes});
  return text_of(out, 2);
}

} // namespace adverb::observe
