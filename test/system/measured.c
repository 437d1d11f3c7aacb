// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// measured PREFIX PROGRAM [ARGUMENT]...: runs the program and ends as it ends. PREFIX.pid is its
// process number from before its first instruction on, PREFIX.rss the largest resident set in KiB
// that the kernel counted for it (wait4(2), ru_maxrss), once it has ended. SIGTERM and SIGINT are
// passed on.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile pid_t child;

static void pass_on(int number) {
  if (child > 0)
    kill(child, number);
}

static void put(const char* prefix, const char* suffix, long value) {
  char name[4096];
  snprintf(name, sizeof name, "%s.%s", prefix, suffix);
  FILE* file = fopen(name, "w");
  if (!file || fprintf(file, "%ld\n", value) < 0 || fclose(file) != 0) {
    fprintf(stderr, "measured: %s: %s\n", name, strerror(errno));
    exit(125);
  }
}

int main(int count, char** words) {
  if (count < 3) {
    fprintf(stderr, "usage: measured PREFIX PROGRAM [ARGUMENT]...\n");
    return 125;
  }
  signal(SIGTERM, pass_on);
  signal(SIGINT, pass_on);
  child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    put(words[1], "pid", getpid());
    execvp(words[2], words + 2);
    fprintf(stderr, "measured: %s: %s\n", words[2], strerror(errno));
    _exit(127);
  }
  if (child < 0) {
    fprintf(stderr, "measured: fork: %s\n", strerror(errno));
    return 125;
  }
  int status;
  struct rusage usage;
  while (wait4(child, &status, 0, &usage) < 0)
    if (errno != EINTR)
      return 125;
  put(words[1], "rss", usage.ru_maxrss);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
