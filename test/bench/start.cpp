// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How long a trivial verbs program takes from its start to its end.
//
//   bench_start PAIRS [NAME=VALUE...] [WORD...]
//   bench_start once
//
// `once` is that program: it opens the first device, registers 4 KiB, deregisters them and ends.
// The other starts it PAIRS times as it is and as often with NAME=VALUE in its environment and the
// WORDs before it, by turns, and prints the nanoseconds of each pair, and those of its processors'.
#include "ends.h"

#include <cstdint>
#include <cstring>
#include <ctime>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

namespace {

using bench::must;

void once() {
  bench::Device device;
  std::vector<char> memory(4096);
  ibv_mr* const mr = ibv_reg_mr(device.pd, memory.data(), memory.size(), bench::rights);
  must(mr != nullptr && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(device.pd) == 0 &&
           ibv_close_device(device.context) == 0,
       "the program");
}

uint64_t now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (static_cast<uint64_t>(t.tv_sec) * 1'000'000'000) + static_cast<uint64_t>(t.tv_nsec);
}

uint64_t nanoseconds(const timeval& t) {
  return (static_cast<uint64_t>(t.tv_sec) * 1'000'000'000) +
         (static_cast<uint64_t>(t.tv_usec) * 1000);
}

struct Took {
  uint64_t wall;
  uint64_t processor;
};

Took took(const std::vector<char*>& words, const std::vector<char*>& environment) {
  const uint64_t start = now();
  pid_t child = 0;
  must(posix_spawnp(&child, words[0], nullptr, nullptr, words.data(), environment.data()) == 0,
       "posix_spawnp");
  int status = 0;
  rusage used{};
  must(wait4(child, &status, 0, &used) == child && status == 0, "what was started");
  return {now() - start, nanoseconds(used.ru_utime) + nanoseconds(used.ru_stime)};
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fputs("usage: bench_start PAIRS [NAME=VALUE...] [WORD...] | once\n", stderr);
    return 2;
  }
  char program[] = "/proc/self/exe", once_word[] = "once";
  if (strcmp(argv[1], once_word) == 0) {
    once();
    return 0;
  }
  char* const self = realpath(program, nullptr);
  std::vector<char*> plain{self, once_word, nullptr}, wrapped, stock, adverb;
  for (char** variable = environ; *variable != nullptr; ++variable)
    stock.push_back(*variable);
  adverb = stock;
  int at = 2;
  for (; at < argc && strchr(argv[at], '=') != nullptr; ++at)
    adverb.push_back(argv[at]);
  wrapped.assign(argv + at, argv + argc);
  wrapped.insert(wrapped.end(), plain.begin(), plain.end());
  stock.push_back(nullptr);
  adverb.push_back(nullptr);
  // What the first of each alone costs.
  took(plain, stock);
  took(wrapped, adverb);
  for (int i = 0; i < atoi(argv[1]); ++i) {
    Took times[2];
    for (int turn = 0; turn < 2; ++turn) {
      const int which = (i + turn) % 2;
      times[which] = which == 0 ? took(plain, stock) : took(wrapped, adverb);
    }
    printf("%lu %lu %lu %lu\n", times[0].wall, times[1].wall, times[0].processor,
           times[1].processor);
  }
  return 0;
}
