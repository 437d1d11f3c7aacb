// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb broker: serves the link port for programs of this host.
#include "link/broker_server.h"
#include "policy/policy.h"
#include "service/thread.h"
#include "tools/commands.h"
#include "tools/qp_owner.h"
#include "world/world.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <getopt.h>
#include <linux/capability.h>
#include <optional>
#include <string>
#include <string_view>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <syslog.h>
#include <unistd.h>

namespace adverb::tools {
namespace {

constexpr const char* usage =
    "usage: adverb broker [OPTION]...\n"
    "Serves the link port for the programs of all users of this host, until it is interrupted.\n"
    "It is needed only if several users run programs under adverb at once: the first program of a\n"
    "single user serves the port for the others. Start the broker before the programs, or have\n"
    "systemd start it (adverb-broker.socket). It runs as root, in the network namespace of the\n"
    "device, or gets its sockets from a process of root, such as systemd.\n\n"
    "  --port NUMBER     instead of link.port of the policy\n"
    "  --user            for programs of this user alone; needs no root\n"
    "  --log FILE        write warnings there (%p: the process) and not to stderr\n"
    "  --log-level LEVEL error, warn (the default), info or debug\n"
    "  --syslog          write warnings to the system's log and not to stderr\n"
    "  --unused SECONDS  end when there has been no program for this long\n"
    "  --help            this text\n";

struct Options {
  std::optional<uint16_t> port;
  bool user = false;
  std::optional<unsigned> unused; // seconds
  std::string log;                // file; empty: stderr
  observe::LogLevel level = observe::LogLevel::warn;
  bool syslog = false;
};

// For who was started without a terminal or a journal.
class SystemLog final : public observe::LogSink {
public:
  SystemLog() noexcept { openlog("adverb-broker", LOG_PID, LOG_DAEMON); }
  void line(observe::LogLevel level, std::string_view text) noexcept override {
    using observe::LogLevel;
    const int priority = level == LogLevel::error  ? LOG_ERR
                         : level == LogLevel::warn ? LOG_WARNING
                         : level == LogLevel::info ? LOG_INFO
                                                   : LOG_DEBUG;
    syslog(priority, "%.*s", static_cast<int>(text.size()), text.data());
  }
};

// A broker of its own World. Lives as long as the process, as its thread does.
struct Serving {
  // Among one user's processes there is nobody to be kept from another's queue pairs.
  Serving(uint16_t port, bool for_all_users, bool to_syslog)
      : world{{.clock = clock,
               .entropy = entropy,
               .service = service,
               .log_sink = to_syslog ? &system_log : nullptr}},
        server(world, port, for_all_users, nullptr,
               for_all_users ? link::BrokerServer::MayOwn([this](pid_t process, uint32_t qpn) {
                 return owners.may_own(process, qpn);
               })
                             : nullptr) {}

  SteadyClock clock;
  KernelEntropy entropy;
  service::Thread service{world};
  SystemLog system_log;
  World world;
  QpOwners owners;
  link::BrokerServer server;
};

// Listening sockets; negative: none.
struct Sockets {
  int members = -1;
  int peers = -1;
};

bool number(const char* text, unsigned long most, unsigned long& value) {
  char* end = nullptr;
  errno = 0;
  value = strtoul(text, &end, 10);
  return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0 && value >= 1 && value <= most;
}

// Nothing: go on. Else the exit status.
std::optional<int> parse(int argc, char** argv, Options& options) {
  static constexpr option known[] = {
      {"port", required_argument, nullptr, 'p'},
      {"user", no_argument, nullptr, 'u'},
      {"unused", required_argument, nullptr, 's'},
      {"log", required_argument, nullptr, 'l'},
      {"log-level", required_argument, nullptr, 'v'},
      {"syslog", no_argument, nullptr, 'y'},
      {"help", no_argument, nullptr, 'h'},
      {nullptr, 0, nullptr, 0},
  };
  optind = 1;
  for (int letter; (letter = getopt_long(argc, argv, "h", known, nullptr)) != -1;) {
    unsigned long value = 0;
    switch (letter) {
    case 'p':
      if (!number(optarg, 65535, value)) {
        fprintf(stderr, "adverb broker: --port: \"%s\" is not a number from 1 to 65535\n", optarg);
        return status_usage;
      }
      options.port = static_cast<uint16_t>(value);
      break;
    case 'u':
      options.user = true;
      break;
    case 's':
      if (!number(optarg, 86400, value)) {
        fprintf(stderr,
                "adverb broker: --unused: \"%s\" is not a number of seconds from 1 to 86400\n",
                optarg);
        return status_usage;
      }
      options.unused = static_cast<unsigned>(value);
      break;
    case 'l':
      options.log = optarg;
      break;
    case 'v':
      if (!observe::parse_log_level(optarg, options.level)) {
        fprintf(stderr,
                "adverb broker: --log-level: \"%s\" is not a level; use off, error, warn, info or "
                "debug\n",
                optarg);
        return status_usage;
      }
      break;
    case 'y':
      options.syslog = true;
      break;
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

// The sockets that whoever started this process listens on, as sd_listen_fds(3) says: from
// descriptor 3 on, as many as LISTEN_FDS counts, if LISTEN_PID is this process. Nothing: go on.
// Else the exit status.
std::optional<int> inherit(Sockets& sockets) {
  const char* const pid = getenv("LISTEN_PID");
  const char* const count = getenv("LISTEN_FDS");
  if (pid == nullptr || count == nullptr || std::to_string(getpid()) != pid)
    return std::nullopt;
  constexpr int first = 3;
  const int end = first + atoi(count);
  for (int fd = first; fd < end; ++fd) {
    int family = 0;
    int listens = 0;
    socklen_t bytes = sizeof family;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) {
      fprintf(stderr, "adverb broker: descriptor %d is not a listening socket\n", fd);
      return status_usage;
    }
    int& which = family == AF_UNIX ? sockets.members : sockets.peers;
    if (which >= 0) {
      fprintf(stderr,
              "adverb broker: two sockets for %s; give one for members (a Unix socket) and one for "
              "peers (TCP)\n",
              family == AF_UNIX ? "members" : "peers");
      return status_usage;
    }
    which = fd;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  return std::nullopt;
}

// What parses what strangers say holds nothing that it does not need: its sockets are there.
void let_go_of_rights() {
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> none{};
  syscall(SYS_capset, &head, none.data());
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files); // one for each member, and for each peer that asks
  }
}

int failed(uint16_t port, int rc) {
  fprintf(stderr,
          "adverb broker: cannot serve port %u: %s. If another broker runs, or programs under "
          "adverb that were started before, end those first\n",
          port, strerror(rc));
  return status_failed;
}

} // namespace

int cmd_broker(int argc, char** argv) {
  Options options;
  Sockets sockets;
  if (const auto status = parse(argc, argv, options))
    return *status;
  if (const auto status = inherit(sockets))
    return *status;
  if (!options.user && geteuid() != 0 && sockets.members < 0) {
    fputs("adverb broker: must run as root: only then do programs of other users trust it. With "
          "--user it "
          "serves programs of this user alone\n",
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
  const uint16_t port = *options.port;
  if (sockets.members < 0)
    sockets.members = link::listen_for_members(link::members_name(port, !options.user, geteuid()));
  if (sockets.members < 0)
    return failed(port, -sockets.members);
  if (sockets.peers < 0)
    sockets.peers = link::listen_for_peers(port);
  if (sockets.peers < 0)
    return failed(port, -sockets.peers);
  let_go_of_rights();

  // Blocked before the service thread exists, so that they come here and nowhere else.
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);

  // Its sockets end with the process; members see that and start another.
  auto& serving = *new Serving(port, !options.user, options.syslog);
  serving.world.log.open(options.level, options.log);
  serving.world.page.start({.library = "adverb broker",
                            .policy = "of none, serves port " + std::to_string(port),
                            .provider = "none",
                            .devices = ""});
  serving.server.serve(sockets.members, sockets.peers);
  if (options.unused)
    serving.server.when_unused(std::chrono::seconds(*options.unused),
                               [] { kill(getpid(), SIGTERM); });
  printf("adverb broker: serving port %u\n", port);
  fflush(stdout);
  int which = 0;
  sigwait(&ends, &which);
  serving.world.page.finish();
  return status_ok;
}

} // namespace adverb::tools
