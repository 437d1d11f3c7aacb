// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb doctor: one line per thing that has to be right on this host, and what to do about it.
#include "tools/doctor.h"
#include "policy/policy.h"
#include "tools/commands.h"

#include <algorithm>
#include <cstdio>
#include <getopt.h>
#include <optional>

#include <nlohmann/json.hpp>

namespace adverb::tools {
namespace {

constexpr const char* usage =
    "usage: adverb doctor [OPTION]...\n"
    "Checks what adverb needs of this host: devices, limits, libraries, the broker's port.\n\n"
    "  --peer IP[:PORT]  also the steps to a link with that host, up to the first that fails: the\n"
    "                    device on the path, connection, banner, hello, the slot that queue pairs\n"
    "                    are proven by, and the level a link would have ([IP]:PORT for IPv6)\n"
    "  --json            one array for machines\n"
    "  --help            this text\n\n"
    "Each line reads ok, warn (works, but less or slower), FAIL or - (not looked at). Exit "
    "status:\n"
    "0 if nothing FAILs, 1 otherwise, 2 if adverb was called wrongly.\n";

struct Options {
  bool json = false;
  std::optional<PeerAddress> peer;
};

// Nothing: go on. Else the exit status.
std::optional<int> parse(int argc, char** argv, Options& options) {
  static constexpr option known[] = {
      {"peer", required_argument, nullptr, 'p'},
      {"json", no_argument, nullptr, 'j'},
      {"help", no_argument, nullptr, 'h'},
      {nullptr, 0, nullptr, 0},
  };
  optind = 1;
  for (int letter; (letter = getopt_long(argc, argv, "h", known, nullptr)) != -1;) {
    switch (letter) {
    case 'p':
      options.peer.emplace();
      if (!parse_peer(optarg, *options.peer)) {
        fprintf(stderr, "adverb doctor: --peer: \"%s\" is no IP address or IP:PORT\n", optarg);
        return status_usage;
      }
      break;
    case 'j':
      options.json = true;
      break;
    case 'h':
      fputs(usage, stdout);
      return status_ok;
    default:
      fputs("try adverb doctor --help\n", stderr);
      return status_usage;
    }
  }
  if (optind < argc) {
    fprintf(stderr, "adverb doctor: \"%s\" is not an option; for a peer use --peer\n",
            argv[optind]);
    return status_usage;
  }
  return std::nullopt;
}

const char* level_text(Check::Level level) {
  constexpr const char* texts[] = {"ok", "warn", "FAIL", "-"};
  return texts[static_cast<size_t>(level)];
}

void print_text(const Report& report) {
  size_t width = 0;
  for (const Check& check : report.checks())
    width = std::max(width, check.what.size() + 1);
  for (const Check& check : report.checks())
    printf("%-4s  %-*s %s%s%s\n", level_text(check.level), static_cast<int>(width),
           (check.what + ":").c_str(), check.finding.c_str(), check.remedy.empty() ? "" : "; ",
           check.remedy.c_str());
}

void print_json(const Report& report) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Check& check : report.checks())
    out.push_back({{"status", level_text(check.level)},
                   {"what", check.what},
                   {"finding", check.finding},
                   {"remedy", check.remedy}});
  puts(out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

policy::Loaded check_policy(Report& report) {
  policy::Loaded loaded = policy::load_for_this_process();
  for (const policy::Error& error : loaded.errors)
    report.fail("policy", error.text(), "no program starts under `adverb run` before that");
  if (loaded)
    report.ok("policy", loaded.policy->source());
  return loaded;
}

} // namespace

int cmd_doctor(int argc, char** argv) {
  Options options;
  if (const auto status = parse(argc, argv, options))
    return *status;

  Report report;
  check_libraries(report);
  const policy::Loaded loaded = check_policy(report);
  const policy::LinkSettings link = loaded ? loaded.policy->link() : policy::LinkSettings{};
  const HostFiles host;
  check_devices(report, host);
  check_host(report, loaded ? loaded.policy->staging() : uint64_t{16} << 20);
  check_iommu(report, host);
  check_module(report, host);
  check_broker(report, link);
  if (options.peer)
    check_peer(report, link, *options.peer, {host, register_slots});

  if (options.json)
    print_json(report);
  else
    print_text(report);
  const auto failed = [](const Check& check) { return check.level == Check::Level::fail; };
  return std::ranges::any_of(report.checks(), failed) ? status_failed : status_ok;
}

} // namespace adverb::tools
