// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One slow page never stops RDMA of a process: two processes over plain verbs, in one of which
// pages take their time.
//
//   slow --list | slow [OPTION]... CASE
#include "cases.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <getopt.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr const char* usage = "usage: slow --list | [--requests N] [--pages N] [--many N] "
                              "[--strict] [--long] [--pinned] CASE\n";

std::vector<slow::Case> cases(const slow::Options& options) {
  std::vector<slow::Case> all;
  add_queue_cases(options, all);
  add_owner_cases(options, all);
  add_end_cases(options, all);
  return all;
}

void run(const slow::Options& options, const slow::Case& which, bool owner, int socket) {
  slow::End end(options, which.setup, owner, socket);
  (owner ? which.owner : which.initiator)(end);
  end.meet();
}

// Whether a child has ended by then.
bool ends_by(pid_t child, slow::Clock::time_point until) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  if (fd < 0)
    return false;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(until - slow::Clock::now()).count();
  pollfd ended{fd, POLLIN, 0};
  const int rc = poll(&ended, 1, static_cast<int>(std::max<decltype(left)>(left, 0)));
  close(fd);
  return rc == 1;
}

// Both processes, and what they found.
int run_case(const slow::Options& options, const slow::Case& which) {
  if (options.pinned && !which.not_pinned.empty()) {
    printf("ok - %s # SKIP %s\n", which.promise.c_str(), which.not_pinned.c_str());
    return 0;
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return 99;
  // Before the first verb, so that both are processes of their own to everybody. This one only
  // looks after them, and outlives either.
  pid_t children[2] = {};
  for (const int i : {0, 1}) {
    children[i] = fork();
    if (children[i] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(ends[1 - i]);
      run(options, which, i == 0, ends[i]);
      exit(slow::complaints() == 0 ? 0 : 1);
    }
  }
  close(ends[0]);
  close(ends[1]);
  bool skipped = false, failed = false;
  // Each wait of theirs ends after a minute, but that of a verb.
  const auto until =
      slow::Clock::now() + 2 * slow::hangs + std::chrono::seconds(2) * which.setup.slow_pages;
  for (const pid_t child : children) {
    if (!ends_by(child, until)) {
      puts("# a process hangs");
      kill(child, SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, 0);
    const bool left = WIFEXITED(status);
    skipped = skipped || (left && WEXITSTATUS(status) == slow::SlowPages::skipped);
    if (left && WEXITSTATUS(status) > 1 && WEXITSTATUS(status) != slow::SlowPages::skipped)
      printf("# a process left with %d\n", WEXITSTATUS(status));
    if (!left)
      printf("# a process was ended by signal %d\n", WTERMSIG(status));
    failed = failed || !left || WEXITSTATUS(status) != 0;
  }
  if (skipped)
    printf("ok - %s # SKIP userfaultfd is not permitted\n", which.promise.c_str());
  else if (failed)
    printf("not ok - %s: see the output\n", which.promise.c_str());
  else
    printf("ok - %s\n", which.promise.c_str());
  return failed && !skipped ? 1 : 0;
}

} // namespace

int main(int argc, char** argv) {
  using namespace slow;
  Options options;
  bool list = false;
  const option names[] = {
      {"requests", required_argument, nullptr, 'r'}, {"pages", required_argument, nullptr, 'p'},
      {"many", required_argument, nullptr, 'n'},     {"strict", no_argument, nullptr, 's'},
      {"long", no_argument, nullptr, 'L'},           {"pinned", no_argument, nullptr, 'P'},
      {"list", no_argument, nullptr, 'l'},           {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", names, nullptr)) != -1;) {
    switch (c) {
    case 'r':
      options.requests = strtoul(optarg, nullptr, 10);
      break;
    case 'p':
      options.pages = strtoul(optarg, nullptr, 10);
      break;
    case 'n':
      options.many = strtoul(optarg, nullptr, 10);
      break;
    case 's':
      options.strict = true;
      break;
    case 'L':
      options = {10000, 100, 1000, true, options.pinned};
      break;
    case 'P':
      options.pinned = true;
      break;
    case 'l':
      list = true;
      break;
    default:
      fputs(usage, stderr);
      return 2;
    }
  }
  if (options.requests == 0 || options.pages == 0 || options.many == 0) {
    fputs(usage, stderr);
    return 2;
  }
  for (const Case& one : cases(options)) {
    if (list)
      puts(one.name.c_str());
    else if (optind + 1 == argc && one.name == argv[optind])
      return run_case(options, one);
  }
  if (!list)
    fputs(usage, stderr);
  return list ? 0 : 2;
}
