// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb broker: serves the link port for the programs of all users of this host.
#include "link/broker.h"
#include "policy/policy.h"
#include "service/thread.h"
#include "tools/commands.h"
#include "world/world.h"

#include <csignal>
#include <cstdio>
#include <cstring>
#include <getopt.h>
#include <optional>
#include <string>
#include <unistd.h>

namespace adverb::tools {
namespace {

constexpr const char* usage =
    "usage: adverb broker [OPTION]...\n"
    "Serves the link port for the programs of all users of this host, until it is interrupted.\n"
    "Needed only where several users run programs under adverb at once: a single user's programs\n"
    "serve the port themselves. Programs that are already running keep the port; start this "
    "first.\n"
    "Must run as root, in the network namespace of the device.\n\n"
    "  --port NUMBER  instead of link.port of the policy\n"
    "  --help         this text\n";

struct Options {
  std::optional<uint16_t> port;
};

// A broker of its own World. Lives as long as the process, as its thread does.
struct Serving {
  explicit Serving(uint16_t port) : broker(world, port, true, nullptr) {}

  SteadyClock clock;
  KernelEntropy entropy;
  service::Thread service{world};
  World world{{.clock = clock, .entropy = entropy, .service = service}};
  link::Broker broker;
};

// Nothing: go on. Else the exit status.
std::optional<int> parse(int argc, char** argv, Options& options) {
  static constexpr option known[] = {
      {"port", required_argument, nullptr, 'p'},
      {"help", no_argument, nullptr, 'h'},
      {nullptr, 0, nullptr, 0},
  };
  optind = 1;
  for (int letter; (letter = getopt_long(argc, argv, "h", known, nullptr)) != -1;) {
    switch (letter) {
    case 'p': {
      char* end = nullptr;
      const unsigned long number = strtoul(optarg, &end, 10);
      if (*optarg < '0' || *optarg > '9' || *end != '\0' || number < 1 || number > 65535) {
        fprintf(stderr, "adverb broker: --port: \"%s\" is no number from 1 to 65535\n", optarg);
        return status_usage;
      }
      options.port = static_cast<uint16_t>(number);
      break;
    }
    case 'h':
      fputs(usage, stdout);
      return status_ok;
    default:
      fputs("try adverb broker --help\n", stderr);
      return status_usage;
    }
  }
  if (optind < argc) {
    fprintf(stderr, "adverb broker: unexpected argument \"%s\"; try adverb broker --help\n",
            argv[optind]);
    return status_usage;
  }
  return std::nullopt;
}

} // namespace

int cmd_broker(int argc, char** argv) {
  Options options;
  if (const auto status = parse(argc, argv, options))
    return *status;
  if (geteuid() != 0) {
    fputs("adverb broker: must run as root: only then do programs of other users trust it\n",
          stderr);
    return status_usage;
  }
  if (!options.port) {
    const policy::Loaded loaded = policy::load_for_this_process();
    for (const auto& error : loaded.errors)
      fprintf(stderr, "adverb broker: %s\n", error.text().c_str());
    if (!loaded)
      return status_usage;
    options.port = loaded.policy->link().port;
  }
  // Blocked before the service thread exists, so that they come here and nowhere else.
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);

  // Its sockets end with the process; members see that and serve themselves.
  auto& serving = *new Serving(*options.port);
  serving.world.log.open(observe::LogLevel::warn);
  if (const int rc = serving.broker.join(); rc != 0) {
    fprintf(stderr,
            "adverb broker: cannot serve port %u: %s. If another broker runs, or programs under "
            "adverb that were started before, end those first\n",
            *options.port, strerror(rc));
    return status_failed;
  }
  printf("adverb broker: serving port %u\n", *options.port);
  fflush(stdout);
  int which = 0;
  sigwait(&ends, &which);
  return status_ok;
}

} // namespace adverb::tools
