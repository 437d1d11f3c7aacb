// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the head of an executable file says: enough to know who will load it.
#pragma once

#include <string>

namespace adverb::tools {

enum class Kind : unsigned char {
  unreadable, // cannot be opened for reading; nothing is known
  elf,        // an executable of this machine's class
  foreign,    // an ELF file for another machine, or not an executable at all
  script,     // starts with "#!"
  other,      // anything else; shells run such files themselves
};

struct Executable {
  Kind kind = Kind::unreadable;
  std::string loader;   // elf: PT_INTERP, empty for a static program; script: the interpreter
  std::string argument; // script: what follows the interpreter, if anything
  std::string problem;  // unreadable, foreign: why
};

Executable inspect(const std::string& path);

// The dynamic loader that this very program was started by.
std::string own_loader();

} // namespace adverb::tools
