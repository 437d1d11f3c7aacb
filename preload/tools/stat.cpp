// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb stat: what the running adverb processes counted so far.
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "observe/directory.h"
#include "observe/layout.h"
#include "observe/snapshot.h"
#include "tools/commands.h"
#include "tools/page_of.h"
#include "tools/stat_module.h"
#include "tools/stat_peers.h"
#include "tools/text.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <getopt.h>
#include <map>
#include <optional>
#include <string>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace adverb::tools {
namespace {

using namespace observe;

constexpr const char* usage =
    "usage: adverb stat [OPTION]...\n"
    "Shows what adverb counted in the running programs of this user; root sees all users'. If\n"
    "adverb.ko is loaded, its counters and its regions follow.\n\n"
    "  -p, --pid PID          this process only\n"
    "  -a, --all              also the numbers that are still zero\n"
    "      --peers            instead, the peer processes of each program: role (initiator: the\n"
    "                         peer asks; owner: the peer is asked), the level by which it was\n"
    "                         admitted (vouched: by the kernel, as a process of this user or\n"
    "                         root on this host; key: it has shown the key of link.key_file;\n"
    "                         host: its queue pairs are proven by being used), and numbers\n"
    "      --json             every number, for machines: with -p the process, otherwise\n"
    "                         {\"processes\": [...]}; adverb.ko's under \"module\" in both\n"
    "      --watch[=SECONDS]  again every so many seconds (1), with rates, until interrupted;\n"
    "                         with --json one line each time\n"
    "      --events           a line for each thing adverb.ko refuses, until interrupted; root "
    "only\n"
    "  -h, --help             this text\n\n"
    "Exit status: 0; 1 if PID has no numbers to show; 2 if adverb was called wrongly.\n";

struct Options {
  pid_t pid = 0; // 0: every process
  bool all = false;
  bool peers = false;
  bool json = false;
  bool events = false;
  double watch = 0; // seconds, 0: once
};

using Earlier = std::map<uint32_t, Snapshot>; // by pid, of the round before

template <typename T> bool parse_number(const char* text, T& out) {
  const char* end = text + strlen(text);
  const auto [rest, error] = std::from_chars(text, end, out);
  return error == std::errc() && rest == end;
}

// Nothing: go on. Else the exit status.
std::optional<int> parse(int argc, char** argv, Options& options) {
  static constexpr option known[] = {
      {"pid", required_argument, nullptr, 'p'}, {"all", no_argument, nullptr, 'a'},
      {"peers", no_argument, nullptr, 'r'},     {"json", no_argument, nullptr, 'j'},
      {"help", no_argument, nullptr, 'h'},      {"watch", optional_argument, nullptr, 'w'},
      {"events", no_argument, nullptr, 'e'},    {nullptr, 0, nullptr, 0},
  };
  optind = 1;
  for (int letter; (letter = getopt_long(argc, argv, "p:ah", known, nullptr)) != -1;) {
    switch (letter) {
    case 'p':
      if (!parse_pid(optarg, options.pid)) {
        fprintf(stderr, "adverb stat: --pid: \"%s\" is not a process id\n", optarg);
        return status_usage;
      }
      break;
    case 'a':
      options.all = true;
      break;
    case 'r':
      options.peers = true;
      break;
    case 'j':
      options.json = true;
      break;
    case 'e':
      options.events = true;
      break;
    case 'w': {
      options.watch = 1;
      // As people type it: `--watch 5` as well as `--watch=5`.
      const char* seconds = optarg;
      if (seconds == nullptr && optind < argc && argv[optind][0] != '-')
        seconds = argv[optind++];
      if (seconds != nullptr && (!parse_number(seconds, options.watch) ||
                                 !(options.watch >= 0.1 && options.watch < 1e6))) {
        fprintf(stderr, "adverb stat: --watch: \"%s\" is not a number of seconds from 0.1 on\n",
                seconds);
        return status_usage;
      }
      break;
    }
    case 'h':
      fputs(usage, stdout);
      return status_ok;
    default:
      fputs("try adverb stat --help\n", stderr);
      return status_usage;
    }
  }
  if (optind < argc) {
    fprintf(stderr, "adverb stat: \"%s\" is not an option; for one process use -p PID\n",
            argv[optind]);
    return status_usage;
  }
  return std::nullopt;
}

std::string age(const Snapshot& snapshot) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const auto opened = static_cast<int64_t>(snapshot.opened_ns / 1'000'000'000);
  const int64_t seconds = std::max<int64_t>(0, now.tv_sec - opened);
  if (seconds < 120)
    return fmt::format("{} s", seconds);
  return seconds < 7200 ? fmt::format("{} min", seconds / 60) : fmt::format("{} h", seconds / 3600);
}

void print_text(const Snapshot& snapshot, const Options& options, const Earlier& earlier) {
  std::string devices;
  for (const std::string& name : snapshot.devices)
    devices += " " + name;
  fmt::print("{} {}, adverb {}, for {}{}\n", snapshot.pid, printable(snapshot.program),
             printable(snapshot.version), age(snapshot),
             snapshot.live ? "" : ", ended without a clean exit");
  fmt::print("  policy {}, provider {}{}\n", printable(snapshot.policy),
             snapshot.provider.empty() ? "unknown" : printable(snapshot.provider),
             printable(devices));
  if (!snapshot.no_views.empty())
    fmt::print("  no views for peers' devices: {}\n", printable(snapshot.no_views));
  if (options.peers)
    return print_peers(snapshot);

  const auto before = earlier.find(snapshot.pid);
  const char* group = "";
  size_t counter = 0, gauge = 0;
  for (const Row& row : kRows) {
    if (row.kind == RowKind::group) {
      group = row.name;
      continue;
    }
    const bool grows = row.kind == RowKind::counter;
    const size_t at = grows ? counter++ : gauge++;
    const int64_t value = grows ? static_cast<int64_t>(snapshot.counters[at]) : snapshot.gauges[at];
    if (value == 0 && !options.all)
      continue;
    if (*group != '\0')
      fmt::print("  {}\n", group);
    group = "";
    std::string rate;
    if (options.watch > 0 && grows && before != earlier.end()) {
      const uint64_t grown = snapshot.counters[at] - before->second.counters[at];
      rate = fmt::format(
          " {:>12}",
          grown == 0 ? "" : fmt::format("{:.0f}/s", static_cast<double>(grown) / options.watch));
    } else if (options.watch > 0) {
      rate = fmt::format(" {:>12}", "");
    }
    fmt::print("    {:<24} {:>18}{}  {}\n", row.name, amount(value, row.unit), rate, row.help);
  }
  if (!snapshot.rules.empty())
    fmt::print("  Rules of the policy\n");
  for (const RuleHit& rule : snapshot.rules)
    fmt::print("    {:<24} {:>18}  {}\n",
               rule.label.empty() ? fmt::format("rule {}", rule.slot) : printable(rule.label),
               fmt::format("{} hits", rule.hits),
               rule.hits == 0 ? "never decided anything so far" : "");
}

struct Round {
  std::vector<Snapshot> snapshots;
  std::optional<ModuleStat> module; // nothing where it is not loaded
  bool failed = false;

  bool regions() const { return module && !module->regions.empty(); }
};

// Most hosts have no module, and nobody misses it there.
void take_module(Round& round, const Options& options) {
  auto answer = ask_module(options.pid);
  if (auto* module = std::get_if<ModuleStat>(&answer)) {
    round.module = std::move(*module);
    return;
  }
  const auto& failed = std::get<module::Failure>(answer);
  if (failed.why == module::Failure::Why::absent)
    return;
  fprintf(stderr, "adverb stat: %s\n", failed.said().c_str());
  round.failed = true;
}

Round take_round(const Options& options) {
  const uid_t uid = geteuid();
  const auto directories = search_directories(uid);
  const auto pages = find_pages(directories, uid);
  Round round;
  take_module(round, options);
  bool found = round.regions();
  for (const FoundPage& page : pages) {
    // A page whose process was killed is still shown to who asks for just that one.
    if (options.pid != 0 ? page.name.pid != options.pid : !page.live)
      continue;
    found = true;
    auto read = read_snapshot(page.path);
    if (auto* snapshot = std::get_if<Snapshot>(&read)) {
      snapshot->live = page.live;
      round.snapshots.push_back(std::move(*snapshot));
    } else if (access(page.path.c_str(), F_OK) == 0) {
      fprintf(stderr, "adverb stat: %s\n", printable(std::get<SnapshotError>(read).text).c_str());
      round.failed = true;
    }
  }
  if (options.pid == 0)
    remove_stale(pages);
  else if (!found) {
    fprintf(stderr, "adverb stat: process %d shows no numbers: %s\n", options.pid,
            why_no_page(options.pid).c_str());
    round.failed = true;
  }
  return round;
}

void print_json(const Round& round, const Options& options) {
  using nlohmann::ordered_json;
  ordered_json out = ordered_json::object(), processes = ordered_json::array();
  for (const Snapshot& snapshot : round.snapshots)
    processes.push_back(ordered_json::parse(to_json(snapshot, -1)));
  if (options.pid == 0)
    out["processes"] = std::move(processes);
  else if (!processes.empty())
    out = std::move(processes.front());
  else if (round.regions())
    out["pid"] = options.pid;
  else
    return; // why is said on stderr
  if (round.module)
    out["module"] = to_json(*round.module);
  puts(out.dump(options.watch > 0 ? -1 : 2).c_str());
}

void print_round(const Round& round, const Options& options, const Earlier& earlier) {
  if (options.json) {
    print_json(round, options);
    return;
  }
  if (options.watch > 0 && isatty(STDOUT_FILENO))
    fputs("\033[H\033[J", stdout);
  bool first = true;
  for (const Snapshot& snapshot : round.snapshots) {
    if (!first)
      putchar('\n');
    first = false;
    print_text(snapshot, options, earlier);
  }
  if (round.module && !options.peers && (options.pid == 0 || !first || round.regions())) {
    if (!first)
      putchar('\n');
    print_module(*round.module, options.all);
  }
  if (round.snapshots.empty() && options.pid == 0 && !round.regions() && !round.failed)
    puts("no running program of yours uses an RDMA device under adverb; start one with `adverb "
         "run`");
}

} // namespace

int cmd_stat(int argc, char** argv) {
  Options options;
  if (const auto status = parse(argc, argv, options))
    return *status;
  if (options.events)
    return follow_events(options.json);
  Earlier earlier;
  for (bool first = true;; first = false) {
    const Round round = take_round(options);
    // A watched process that ends is the end of watching it, not a failure.
    if (!first && options.pid != 0 && round.snapshots.empty() && !round.regions())
      return status_ok;
    print_round(round, options, earlier);
    const bool ended = options.pid != 0 && !round.regions() &&
                       std::ranges::none_of(round.snapshots, &Snapshot::live);
    if (options.watch <= 0 || (options.pid != 0 && (round.failed || ended)))
      return round.failed ? status_failed : status_ok;
    if (fflush(stdout) != 0 || ferror(stdout))
      return status_failed;
    earlier.clear();
    for (const Snapshot& snapshot : round.snapshots)
      earlier.insert_or_assign(snapshot.pid, snapshot);
    timespec pause{
        static_cast<time_t>(options.watch),
        static_cast<long>(
            (options.watch - static_cast<double>(static_cast<time_t>(options.watch))) * 1e9)};
    while (nanosleep(&pause, &pause) != 0 && errno == EINTR) {
    }
  }
}

} // namespace adverb::tools
