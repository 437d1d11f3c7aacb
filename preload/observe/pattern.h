// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// File names that the user gives: "%p" stands for the process id.
#pragma once

#include <string>
#include <string_view>

#include <unistd.h>

namespace adverb::observe {

/// `pattern` with every "%p" replaced by this process's id and "%%" by "%".
inline std::string expand_pattern(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (next == 'p')
      out += std::to_string(getpid());
    else if (next == '%')
      out += '%';
    else {
      out += pattern[i];
      continue;
    }
    ++i;
  }
  return out;
}

} // namespace adverb::observe
