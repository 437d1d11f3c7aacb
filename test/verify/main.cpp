// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// verify: an ordinary verbs program that checks what benchmarks do not: bytes, order, completions,
// errors, events. It knows nothing of adverb; what it prints on a stock stack and under adverb is
// compared by verify-compare.
//
// The supervisor (this process, unless told otherwise) touches no verbs object. It runs the cases
// in a worker process and starts another worker behind a case that crashed or hung, so that one bad
// case costs one case.
#include "case.h"

#include <fnmatch.h>
#include <getopt.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace verify {
namespace {

struct Arguments {
  std::string role = "pair", peer = "127.0.0.1", device, glob = "*", log;
  std::vector<std::string> but;
  int gid_index = -1, port = 18600, fd = -1, from = -1, board = -1;
  bool list = false, isolate = false;
  Options options;
};

// Shared between supervisor and worker: how far the worker is.
struct Board {
  int current; // index of the case being run; the number of cases when all are done
  int bad;
};

const char usage[] =
    "usage: verify [--role pair|both|client|server] [--peer IP] [--port N] [--device NAME]\n"
    "              [--gid-index N] [--case GLOB] [--except GLOB]... [--list] [--seed N]\n"
    "              [--full] [--strict] [--isolate] [--case-timeout S] [--await FILE] [--log FILE]\n"
    "  pair    both sides on this host, each in a process of its own (default)\n"
    "  both    both sides in one process\n"
    "  server  serves clients until killed;  client  drives cases against --peer\n"
    "  --full    every size with every alignment;  --strict  also fields the manual leaves "
    "undefined\n"
    "  --isolate a fresh process for every case\n"
    "  --await   the log of a stock run, or what was written like one: events, states that come\n";

std::vector<Test> all_tests() {
  std::vector<Test> t;
  add_data_cases(t);
  add_atomic_cases(t);
  add_order_cases(t);
  add_remote_error_cases(t);
  add_local_error_cases(t);
  add_state_cases(t);
  add_post_cases(t);
  add_region_cases(t);
  add_cq_cases(t);
  add_srq_cases(t);
  add_peer_cases(t);
  return t;
}

bool wanted(const Arguments& a, const Test& t) {
  return fnmatch(a.glob.c_str(), t.name.c_str(), 0) == 0 &&
         std::none_of(a.but.begin(), a.but.end(), [&](const std::string& but) {
           return fnmatch(but.c_str(), t.name.c_str(), 0) == 0;
         });
}

Side make_side(const Arguments& a, Agent* local) {
  if (local)
    return Side(local);
  return a.role == "client" ? Side::connect(a.peer.c_str(), a.port) : Side::spawn();
}

void open_side(Side& s, const Arguments& a) {
  Open o;
  std::strncpy(o.device, a.device.c_str(), sizeof o.device - 1);
  o.gid_index = a.gid_index;
  s.info = s(o);
  if (s.info.err)
    throw std::runtime_error("no such RDMA device, or it cannot be opened");
  std::fprintf(stderr, "verify: process %d\n", s.info.pid);
}

// The watchdog's view of the running case.
std::atomic<const char*> running_case{nullptr};
std::atomic<uint64_t> case_deadline{0};

void start_watchdog(Log& log) {
  std::thread([&log] {
    for (;;) {
      usleep(200000);
      const uint64_t end = case_deadline;
      if (!end || now_ms() < end)
        continue;
      const char* at = waiting_for;
      log.line(running_case.load(), "watchdog", at ? at : "between commands");
      _exit(3);
    }
  }).detach();
}

// One process: cases from `from` on, one after the other.
int run_worker(const Arguments& a, FILE* out) {
  auto tests = all_tests();
  auto* board = static_cast<Board*>(
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, a.board, 0));
  Log log(out);
  start_watchdog(log);
  Agent agent_a, agent_b;
  Side side_a(&agent_a);
  open_side(side_a, a);
  Side side_b = make_side(a, a.role == "both" ? &agent_b : nullptr);
  open_side(side_b, a);
  auto new_peer = [&] {
    Side s = make_side(a, nullptr);
    open_side(s, a);
    return s;
  };
  for (size_t i = static_cast<size_t>(a.from); i < tests.size(); ++i) {
    if (!wanted(a, tests[i]))
      continue;
    board->current = static_cast<int>(i);
    running_case = tests[i].name.c_str();
    case_deadline = now_ms() + static_cast<uint64_t>(a.options.case_timeout_s) * 1000;
    Case c(tests[i].name, log, a.options, side_a, side_b, new_peer);
    try {
      tests[i].run(c);
      if (a.options.awaited.given())
        c.log_late_events();
      Outcome ra = side_a(Reset{}), rb = side_b(Reset{});
      c.result("end", ra.err ? ra.err : rb.err);
    } catch (const PeerGone&) {
      c.say("end", "lost the other side BAD");
      board->bad += log.bad_count() + 1;
      _exit(4); // the supervisor goes on behind this case, with a new other side
    } catch (const std::exception& e) {
      c.say("end", "cannot run: %s", e.what());
      log.bad();
      side_a(Reset{}), side_b(Reset{});
    }
    case_deadline = 0;
    if (a.isolate)
      break;
  }
  board->bad += log.bad_count();
  if (!a.isolate)
    board->current = static_cast<int>(tests.size());
  return 0;
}

int run_supervisor(Arguments& a, char** argv, FILE* out) {
  auto tests = all_tests();
  const int count = static_cast<int>(tests.size());
  a.board = memfd_create("verify", 0);
  if (a.board < 0 || ftruncate(a.board, sizeof(Board)))
    return 2;
  auto* board = static_cast<Board*>(
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, a.board, 0));
  std::vector<char*> args;
  for (char** p = argv; *p; ++p)
    args.push_back(*p);
  std::string board_text = std::to_string(a.board), from_text;
  const uint64_t start = now_ms();
  Log log(out);
  for (int from = 0; from < count; from = board->current + 1) {
    if (a.isolate && !wanted(a, tests[static_cast<size_t>(from)])) {
      board->current = from;
      continue;
    }
    from_text = std::to_string(from);
    board->current = from - 1;
    pid_t pid = fork();
    if (pid == 0) {
      char board_flag[] = "--board", from_flag[] = "--from";
      for (char* extra : {board_flag, board_text.data(), from_flag, from_text.data()})
        args.push_back(extra);
      args.push_back(nullptr);
      execv("/proc/self/exe", args.data());
      _exit(127);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (status == 0)
      continue;
    if (board->current < from) { // it did not come as far as a case
      std::fprintf(stderr, "verify: the worker ended with status %#x before its first case\n",
                   static_cast<unsigned>(status));
      return 2;
    }
    ++board->bad;
    char text[80];
    if (WIFSIGNALED(status))
      std::snprintf(text, sizeof text, "worker died of signal %d BAD", WTERMSIG(status));
    else
      std::snprintf(text, sizeof text, "worker left with status %d BAD", WEXITSTATUS(status));
    log.line(tests[static_cast<size_t>(board->current)].name.c_str(), "died", text);
  }
  std::fprintf(stderr, "verify: %d observations are wrong by themselves, %.1f s\n", board->bad,
               static_cast<double>(now_ms() - start) / 1000);
  return board->bad ? 1 : 0;
}

int parse(int argc, char** argv, Arguments& a) {
  static const option options[] = {
      {"role", 1, nullptr, 'r'},         {"peer", 1, nullptr, 'p'},      {"port", 1, nullptr, 'P'},
      {"device", 1, nullptr, 'd'},       {"gid-index", 1, nullptr, 'g'}, {"case", 1, nullptr, 'c'},
      {"list", 0, nullptr, 'l'},         {"seed", 1, nullptr, 's'},      {"full", 0, nullptr, 'f'},
      {"strict", 0, nullptr, 'S'},       {"isolate", 0, nullptr, 'i'},   {"log", 1, nullptr, 'o'},
      {"case-timeout", 1, nullptr, 't'}, {"fd", 1, nullptr, 'F'},        {"from", 1, nullptr, 'n'},
      {"board", 1, nullptr, 'b'},        {"except", 1, nullptr, 'x'},    {"await", 1, nullptr, 'a'},
      {nullptr, 0, nullptr, 0}};
  for (int k; (k = getopt_long(argc, argv, "", options, nullptr)) != -1;)
    switch (k) {
    case 'r':
      a.role = optarg;
      break;
    case 'p':
      a.peer = optarg;
      break;
    case 'P':
      a.port = std::atoi(optarg);
      break;
    case 'd':
      a.device = optarg;
      break;
    case 'g':
      a.gid_index = std::atoi(optarg);
      break;
    case 'c':
      a.glob = optarg;
      break;
    case 'a':
      if (!a.options.awaited.read(optarg)) {
        std::fprintf(stderr, "verify: --await %s holds no lines of a log\n", optarg);
        return 2;
      }
      break;
    case 'x':
      a.but.emplace_back(optarg);
      break;
    case 'l':
      a.list = true;
      break;
    case 's':
      a.options.seed = std::strtoull(optarg, nullptr, 0);
      break;
    case 'f':
      a.options.full = true;
      break;
    case 'S':
      a.options.strict = true;
      break;
    case 'i':
      a.isolate = true;
      break;
    case 'o':
      a.log = optarg;
      break;
    case 't':
      a.options.case_timeout_s = std::atoi(optarg);
      break;
    case 'F':
      a.fd = std::atoi(optarg);
      break;
    case 'n':
      a.from = std::atoi(optarg);
      break;
    case 'b':
      a.board = std::atoi(optarg);
      break;
    default:
      return 2;
    }
  return optind == argc ? 0 : 2;
}

} // namespace

int run(int argc, char** argv) {
  Arguments a;
  if (parse(argc, argv, a)) {
    std::fputs(usage, stderr);
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  if (a.role == "agent")
    return serve_agent(a.fd);
  if (a.role == "server")
    return serve_port(a.port);
  if (a.list) {
    for (auto& t : all_tests())
      if (wanted(a, t))
        std::puts(t.name.c_str());
    return 0;
  }
  if (!a.log.empty() && a.from < 0)
    unlink(a.log.c_str());
  FILE* out = stdout;
  if (!a.log.empty() && !(out = std::fopen(a.log.c_str(), "a"))) {
    std::perror("verify: --log");
    return 2;
  }
  setvbuf(out, nullptr, _IOFBF, 1 << 16);
  if (a.from < 0)
    return run_supervisor(a, argv, out);
  try {
    return run_worker(a, out);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "verify: %s\n", e.what());
    return 2;
  }
}

} // namespace verify

int main(int argc, char** argv) {
  return verify::run(argc, argv);
}
