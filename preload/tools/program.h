// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Finds the program of a command line and says whether a preload can reach it.
#pragma once

#include <string>
#include <vector>

namespace adverb::tools {

struct Program {
  std::string path;       // what will be executed
  std::string executable; // what will run: an ELF file; for a script its interpreter
  bool script = false;
  std::string sanitizer; // path of its sanitizer's runtime; empty: none that must come first

  int status = 0;     // status_ok, or why it cannot be run: status_refused, status_missing
  std::string reason; // for a status other than status_ok
  std::string remedy;
  std::vector<std::string> warnings; // why adverb may do nothing for it
  std::vector<std::string> notes;    // what explains the rest
};

// `name` as execvp(3) would find it.
Program find_program(const std::string& name);

} // namespace adverb::tools
