// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

#include <cstdlib>
#include <vector>

namespace signals {

struct Case {
  const char* name;
  void (*run)(const char* program);
};

void add_handler_cases(std::vector<Case>& to); // what a handler sees
void add_disposition_cases(
    std::vector<Case>& to); // what is asked and answered, and who inherits it

inline std::vector<Case> cases() {
  std::vector<Case> all;
  add_handler_cases(all);
  add_disposition_cases(all);
  return all;
}

// What a program started by a case does.
int after_exec(int signal);

// Memory that faults: of no access, and beyond the end of a file.
volatile char* no_access();
volatile char* beyond_file();

// Prints a line at once, also from a handler.
[[gnu::format(printf, 1, 2)]] void say(const char* format, ...);

// Printed where the process may end: to stderr, whose handlers the kernel has. The test asks for
// it.
void say_whose();

} // namespace signals
