// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb trace: what one process has decided of late, and why.
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "observe/directory.h"
#include "observe/trace_log.h"
#include "steering/choose.h"
#include "steering/steer.h"
#include "tools/commands.h"
#include "tools/page_of.h"
#include "tools/text.h"
#include "ways/table.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <ctime>
#include <getopt.h>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace adverb::tools {
namespace {

using nlohmann::ordered_json;
using namespace observe;

constexpr const char* usage =
    "usage: adverb trace [OPTION]... PID | FILE\n"
    "Shows what adverb has decided in a running program, and why: the ways of requests, what "
    "became\n"
    "of peers and proofs, leases, choices by measurement, reloads of the policy. The last 512\n"
    "decisions are kept. Requests that name no memory of the peer (SENDs) are not traced. Of a\n"
    "program that has ended, FILE is what it wrote to $ADVERB_STATS_FILE.\n\n"
    "      --follow  go on with new ones until the program ends\n"
    "      --json    for chrome://tracing and Perfetto: a track for each queue pair\n"
    "  -h, --help    this text\n\n"
    "Exit status: 0; 1 if PID has no trace to show; 2 if adverb was called wrongly.\n";

struct Options {
  pid_t pid = 0; // 0: what is in `file`
  std::string file;
  bool json = false;
  bool follow = false;
};

// Nothing: go on. Else the exit status.
std::optional<int> parse(int argc, char** argv, Options& options) {
  static constexpr option known[] = {
      {"follow", no_argument, nullptr, 'f'},
      {"json", no_argument, nullptr, 'j'},
      {"help", no_argument, nullptr, 'h'},
      {nullptr, 0, nullptr, 0},
  };
  optind = 1;
  for (int letter; (letter = getopt_long(argc, argv, "h", known, nullptr)) != -1;) {
    switch (letter) {
    case 'f':
      options.follow = true;
      break;
    case 'j':
      options.json = true;
      break;
    case 'h':
      fputs(usage, stdout);
      return status_ok;
    default:
      fputs("try adverb trace --help\n", stderr);
      return status_usage;
    }
  }
  if (optind + 1 != argc) {
    fputs("adverb trace: name one process by its id (`adverb stat` lists them), or one file of "
          "statistics\n",
          stderr);
    return status_usage;
  }
  if (!parse_pid(argv[optind], options.pid))
    options.file = argv[optind];
  if (options.file.empty() && options.pid <= 0) {
    fputs("adverb trace: \"\" is neither a process id (`adverb stat` lists them) nor a file of "
          "statistics\n",
          stderr);
    return status_usage;
  }
  if (options.follow && (options.json || !options.file.empty())) {
    fputs("adverb trace: --follow is for the text of a running program\n", stderr);
    return status_usage;
  }
  return std::nullopt;
}

const char* opcode_name(uint8_t opcode) {
  switch (opcode) {
  case IBV_WR_RDMA_WRITE:
    return "WRITE";
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    return "WRITE with immediate";
  case IBV_WR_RDMA_READ:
    return "READ";
  case IBV_WR_ATOMIC_CMP_AND_SWP:
    return "compare and swap";
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    return "fetch and add";
  default:
    return "request";
  }
}

// A power of two: "33..64" would be wrong, as 64 belongs to the next one.
std::string sizes(uint64_t bytes) {
  if (bytes <= 1)
    return fmt::format("{} bytes", bytes);
  const auto width = static_cast<unsigned>(std::bit_width(bytes));
  const uint64_t least = uint64_t{1} << (width - 1);
  return fmt::format("{} to {} bytes", least, 2 * least - 1);
}

const steering::WayRow* row_of(const TraceEvent& event) {
  const auto ways = ways::table();
  return event.second < ways.size() ? ways[event.second] : nullptr;
}

std::string way_name(const TraceEvent& event) {
  const auto* const row = row_of(event);
  return row != nullptr ? row->name : "unknown way";
}

std::string shape_of(const TraceEvent& event) {
  if (event.first == trace_any_opcode)
    return fmt::format("requests under key {:#x}", event.key);
  return fmt::format("{} of {}, key {:#x}", opcode_name(event.first), sizes(event.bytes),
                     event.key);
}

std::string words(const TraceEvent& event) {
  switch (event.kind) {
  case TraceKind::way: {
    const auto* const row = row_of(event);
    const std::string change =
        event.address > 1 ? fmt::format(" (change {})", event.address - 1) : "";
    return fmt::format("{}: {} ({}): {}{}", shape_of(event), way_name(event),
                       row != nullptr ? row->words : "",
                       steering::words(steering::Reason{event.reason}), change);
  }
  case TraceKind::peer:
    switch (steering::Peer{event.first}) {
    case steering::Peer::linked:
      return "peer: it runs adverb, and there is a link";
    case steering::Peer::stock:
      return "peer: it runs without adverb, or no link to it can be made";
    case steering::Peer::lost:
      return "peer: the link is lost";
    default:
      return "peer: nothing is known of it";
    }
  case TraceKind::proof:
    return event.first != 0 ? "proof: this queue pair and its peer are proven to each other"
                            : "proof: it could not be had; the peer counts as one without adverb";
  case TraceKind::lease:
    return fmt::format("{} of {} bytes at {:#x}, key {:#x}, can be used",
                       event.first != 0 ? "view" : "lease", event.bytes, event.address, event.key);
  case TraceKind::lease_end: {
    constexpr const char* why[] = {"their owner has called them back",
                                   "no request has used them for a second",
                                   "their region has ended"};
    return fmt::format("{} leases have ended: {}", event.address,
                       event.first < std::size(why) ? why[event.first] : "");
  }
  case TraceKind::steer: {
    constexpr const char* classes[] = {"up to 256 bytes", "up to 1024 bytes", "up to 4096 bytes"};
    constexpr const char* choices[] = {"the NIC", "the owner's CPU",
                                       "the NIC for hot pages, the owner's CPU for others"};
    const std::string rate =
        event.address != 0
            ? fmt::format(", {:.2f} us for a request", static_cast<double>(event.address) / 1e6)
            : "";
    return fmt::format("measured: requests of {} go by {}{}",
                       event.first < std::size(classes) ? classes[event.first] : "other lengths",
                       event.second < std::size(choices) ? choices[event.second] : "another way",
                       rate);
  }
  case TraceKind::policy:
    return "policy: the file has changed and is in force";
  default:
    return "an event that this adverb does not know";
  }
}

std::string time_of_day(uint64_t real_ns) {
  const auto seconds = static_cast<time_t>(real_ns / 1'000'000'000);
  tm local{};
  localtime_r(&seconds, &local);
  return fmt::format("{:02}:{:02}:{:02}.{:06}", local.tm_hour, local.tm_min, local.tm_sec,
                     real_ns / 1000 % 1'000'000);
}

// What is new of it; `next`: the number of the next event to print.
void print_text(const TraceLog& log, uint64_t& next) {
  if (!log.events.empty() && log.events.front().first > next)
    fmt::print("  ({} decisions before are not kept)\n", log.events.front().first - next);
  for (const auto& [number, event] : log.events)
    if (number >= next)
      fmt::print("  {}  {:>10}  {}\n",
                 time_of_day(event.time_ns + static_cast<uint64_t>(log.to_real_ns)),
                 event.qpn != 0 ? std::to_string(event.qpn) : "-", words(event));
  next = log.events.empty() ? next : std::max(next, log.events.back().first + 1);
}

void print_title(const TraceLog& log, bool is_over) {
  fmt::print("{} {}{}\n  time             queue pair  decision\n", log.pid, printable(log.program),
             is_over ? ", ended without a clean exit" : "");
}

// The format is described as "Trace Event Format" of Chromium's catapult. A way is a span: from the
// event that chose it to the next of the same shape, or to the last of all.
void print_json(const TraceLog& log) {
  auto out = ordered_json::array();
  out.push_back(
      {{"name", "process_name"}, {"ph", "M"}, {"pid", log.pid}, {"args", {{"name", log.program}}}});
  std::set<uint32_t> named;
  std::map<std::string, ordered_json> open; // spans, by shape
  uint64_t last = 0;
  for (const auto& [number, event] : log.events) {
    last = std::max(last, event.time_ns);
    if (named.insert(event.qpn).second)
      out.push_back({{"name", "thread_name"},
                     {"ph", "M"},
                     {"pid", log.pid},
                     {"tid", event.qpn},
                     {"args",
                      {{"name", event.qpn != 0 ? fmt::format("queue pair {}", event.qpn)
                                               : std::string("process")}}}});
    ordered_json one = {{"name", words(event)},
                        {"cat", "decision"},
                        {"ph", "i"},
                        {"s", "t"},
                        {"pid", log.pid},
                        {"tid", event.qpn},
                        {"ts", static_cast<double>(event.time_ns) / 1e3},
                        {"args", {{"number", number}, {"why", words(event)}}}};
    if (event.kind == TraceKind::way) {
      const std::string shape = fmt::format("{}/{}", event.qpn, shape_of(event));
      if (const auto before = open.find(shape); before != open.end()) {
        before->second["ph"] = "e";
        before->second["ts"] = one["ts"];
        out.push_back(before->second);
      }
      one["name"] = fmt::format("{}: {}", shape_of(event), way_name(event));
      one["cat"] = "way";
      one["ph"] = "b";
      one["id"] = shape;
      one.erase("s");
      open[shape] = one;
    }
    out.push_back(std::move(one));
  }
  for (auto& [shape, span] : open) {
    span["ph"] = "e";
    span["ts"] = static_cast<double>(std::max(last, log.taken_ns)) / 1e3;
    out.push_back(span);
  }
  puts(ordered_json({{"traceEvents", std::move(out)}, {"displayTimeUnit", "ms"}})
           .dump(1, ' ', true, ordered_json::error_handler_t::replace)
           .c_str());
}

// Its page, or "". Of a process that was killed only if none that runs has the number.
std::string page_path(pid_t pid, bool& is_live) {
  const uid_t uid = geteuid();
  std::string path;
  is_live = false;
  for (const FoundPage& page : find_pages(search_directories(uid), uid)) {
    struct stat process{};
    const bool is_its = page.live && stat(fmt::format("/proc/{}", pid).c_str(), &process) == 0 &&
                        process.st_uid == page.name.uid;
    if (page.name.pid != pid || (is_live && !is_its))
      continue;
    is_live = is_its;
    path = page.path;
  }
  return path;
}

} // namespace

int cmd_trace(int argc, char** argv) {
  Options options;
  if (const auto status = parse(argc, argv, options))
    return *status;
  uint64_t next = 0;
  for (bool is_first = true;; is_first = false) {
    bool is_live = false;
    const bool of_file = !options.file.empty();
    const std::string path = of_file ? options.file : page_path(options.pid, is_live);
    if (path.empty() && !is_first)
      return status_ok; // it has ended
    if (path.empty()) {
      fprintf(stderr, "adverb trace: process %d shows no trace: %s\n", options.pid,
              why_no_page(options.pid).c_str());
      return status_failed;
    }
    const auto read = of_file ? read_trace_of_file(path) : read_trace(path);
    if (const auto* failed = std::get_if<SnapshotError>(&read)) {
      if (!is_first && access(path.c_str(), F_OK) != 0)
        return status_ok; // it has just ended
      fprintf(stderr, "adverb trace: %s\n", printable(failed->text).c_str());
      return status_failed;
    }
    const auto& log = std::get<TraceLog>(read);
    if (options.json) {
      print_json(log);
      return status_ok;
    }
    if (is_first)
      print_title(log, !of_file && !is_live);
    print_text(log, next);
    if (!options.follow || !is_live)
      return status_ok;
    if (fflush(stdout) != 0 || ferror(stdout))
      return status_failed;
    usleep(100'000);
  }
}

} // namespace adverb::tools
