// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The two sides most cases of links begin with, and the TAP around them.
#pragma once

#include "link_ends.h"

#include <csignal>
#include <span>

namespace link_test {

using link::Verdict;

// Queue pair 100 of one process is connected to 200 of the other.
inline constexpr uint32_t here = 100;
inline constexpr uint32_t there = 200;

inline Asker* asker = nullptr;

inline void install() {
  if (asker == nullptr)
    asker = new Asker;
  links().serve(std::make_shared<EchoProtocol>(*asker, protocol, 8192));
}

// Owns queue pair `there`, connected to `here`, until told to end.
inline void own(Node& me) {
  install();
  links().publish(qp(there, 2));
  links().connected(qp(there, 2, here));
  me.say('r');
  me.hear('q');
}

inline link::Bound ask(uint64_t handle = 1) {
  install();
  links().publish(qp(here, handle));
  return bind(qp(here, handle, there));
}

// Set by a case that cannot be tried here: why.
inline const char* skipped = nullptr;

struct Case {
  const char* name;
  bool (*run)();
  bool as_root = false; // it makes processes of several users
};
#define CASE(function) {#function, function}
#define CASE_AS_ROOT(function) {#function, function, true}

// All cases, or the one named on the command line.
inline int run(std::span<const Case> cases, int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  printf("1..%zu\n", argc > 1 ? size_t{1} : cases.size());
  bool all = true;
  for (const Case& c : cases) {
    if (argc > 1 && strcmp(argv[1], c.name) != 0)
      continue;
    fflush(stdout);
    if (c.as_root && geteuid() != 0) {
      printf("ok - %s # SKIP needs root\n", c.name);
      continue;
    }
    skipped = nullptr;
    const bool good = c.run();
    const bool skips = good && skipped != nullptr;
    printf("%s - %s%s%s\n", good ? "ok" : "not ok", c.name, skips ? " # SKIP " : "",
           skips ? skipped : "");
    all = all && good;
  }
  return all ? 0 : 1;
}

} // namespace link_test
