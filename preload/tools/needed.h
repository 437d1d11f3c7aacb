// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which libraries a program will load at start, as the dynamic loader itself resolves them.
#pragma once

#include <string>

namespace adverb::tools {

struct Needed {
  bool known = false;        // the loader could be asked
  bool verbs = false;        // libibverbs or librdmacm is among them
  bool direct_verbs = false; // a provider's own interface (libmlx5, libmlx4, libefa) is linked
  std::string sanitizer;     // path of a sanitizer's runtime that must come first; empty: none
};

// Asks the loader to list, which runs no code of the program. `path` is an ELF file that uses the
// same loader as this program.
Needed needed_by(const std::string& path);

} // namespace adverb::tools
