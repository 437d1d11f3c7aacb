// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An ordinary verbs program that handles SIGSEGV and SIGBUS in the ways programs do, while copies
// of its memory are made and fail. Prints what it sees of its signals, the same stock and under
// adverb.
//
//   signals --list | signals CASE
#include "cases.h"
#include "copies.h"

#include <cstdio>
#include <cstring>
#include <unistd.h>

int main(int argc, char** argv) {
  using namespace signals;
  if (argc == 2 && strcmp(argv[1], "--list") == 0) {
    for (const Case& one : cases())
      puts(one.name);
    return 0;
  }
  if (argc == 3 && strcmp(argv[1], "--after-exec") == 0)
    return after_exec(atoi(argv[2]));
  for (const Case& one : cases())
    if (argc == 2 && strcmp(argv[1], one.name) == 0) {
      alarm(60);
      one.run(argv[0]);
      return 0;
    }
  fprintf(stderr, "usage: signals --list | CASE\n");
  return 2;
}
