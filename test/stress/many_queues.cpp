// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Many queue pairs and threads on both ends of plain verbs, everything at once, everything counted.
#include "side.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <getopt.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

constexpr const char* usage = "usage: many_queues [--seconds N | --operations N | --until FILE] "
                              "[--queues N] [--threads N] [--one-process] [--churn]\n";

int verdict(unsigned broken, unsigned number, stress::Promise promise, const char* name) {
  const bool bad = (broken & promise) != 0;
  printf("%s %u - %s%s%s\n", bad ? "not ok" : "ok", number, name, bad ? ": " : "",
         stress::first_complaint(promise));
  return bad ? 1 : 0;
}

void run(const stress::Options& options, int socket) {
  stress::Side side(options, socket);
  side.run();
  printf("# %llu operations\n", static_cast<unsigned long long>(side.operations()));
  fflush(stdout);
}

} // namespace

int main(int argc, char** argv) {
  stress::Options options;
  const option names[] = {
      {"seconds", required_argument, nullptr, 's'}, {"queues", required_argument, nullptr, 'q'},
      {"threads", required_argument, nullptr, 't'}, {"one-process", no_argument, nullptr, 'o'},
      {"churn", no_argument, nullptr, 'c'},         {"operations", required_argument, nullptr, 'n'},
      {"until", required_argument, nullptr, 'u'},   {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", names, nullptr)) != -1;) {
    switch (c) {
    case 's':
      options.seconds = static_cast<unsigned>(atoi(optarg));
      break;
    case 'n':
      options.operations = static_cast<unsigned>(atoi(optarg));
      break;
    case 'u':
      options.until = optarg;
      break;
    case 'q':
      options.queues = static_cast<unsigned>(atoi(optarg));
      break;
    case 't':
      options.threads = static_cast<unsigned>(atoi(optarg));
      break;
    case 'o':
      options.one_process = true;
      break;
    case 'c':
      options.churn = true;
      break;
    default:
      fputs(usage, stderr);
      return 2;
    }
  }
  // Threads share the four completion queues, and each must have one to poll.
  if (options.queues == 0 || options.threads < 4) {
    fputs(usage, stderr);
    return 2;
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return 99;
  unsigned broken = 0;
  if (options.one_process) {
    std::thread other([&] { run(options, ends[1]); });
    run(options, ends[0]);
    other.join();
  } else {
    // Before the first verb, so that both are processes of their own to everybody.
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      run(options, ends[1]);
      exit(static_cast<int>(stress::broken()));
    }
    close(ends[1]);
    run(options, ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) > 15)
      stress::complain(stress::progress, "the peer's process has failed, status %d", status);
    else
      broken |= static_cast<unsigned>(WEXITSTATUS(status));
  }
  broken |= stress::broken();
  int failed = 0;
  failed += verdict(broken, 1, stress::completions, "every request completes exactly once");
  failed +=
      verdict(broken, 2, stress::data, "every byte arrives, in order, before it is announced");
  failed += verdict(broken, 3, stress::atomics, "no atomic operation is lost or doubled");
  failed += verdict(broken, 4, stress::progress, "no queue pair stops and no sleeper is forgotten");
  puts("1..4");
  return failed == 0 ? 0 : 1;
}
