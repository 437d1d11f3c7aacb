// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "policy/glob.h"

namespace adverb::policy {
namespace {

constexpr size_t no_match = std::string_view::npos;

// Length of the bracket expression at the start of `pattern` if it accepts `c`, else no_match. An
// unclosed bracket is a literal '['.
size_t bracket(std::string_view pattern, char c) noexcept {
  size_t i = 1;
  const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (negated)
    ++i;
  bool inside = false;
  for (bool first = true; i < pattern.size(); first = false) {
    if (pattern[i] == ']' && !first)
      return inside != negated ? i + 1 : no_match;
    const char low = pattern[i];
    char high = low;
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      high = pattern[i + 2];
      i += 2;
    }
    ++i;
    inside |= low <= c && c <= high;
  }
  return c == '[' ? 1 : no_match;
}

// Length of the pattern's first element if it accepts `c`, else no_match. Not for '*'.
size_t element(std::string_view pattern, char c) noexcept {
  switch (pattern[0]) {
  case '?':
    return 1;
  case '[':
    return bracket(pattern, c);
  case '\\':
    if (pattern.size() > 1)
      return pattern[1] == c ? 2 : no_match;
    return c == '\\' ? 1 : no_match;
  default:
    return pattern[0] == c ? 1 : no_match;
  }
}

} // namespace

// Only the last '*' needs to be tried again: what earlier ones matched can only have been too short
// for a match that the last one can lengthen as well.
bool glob_matches(std::string_view pattern, std::string_view text) noexcept {
  size_t p = 0, t = 0;
  size_t star = no_match, retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      retry = t;
      continue;
    }
    const size_t used = p < pattern.size() ? element(pattern.substr(p), text[t]) : no_match;
    if (used != no_match) {
      p += used;
      ++t;
    } else if (star != no_match) {
      p = star;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*')
    ++p;
  return p == pattern.size();
}

bool glob_is_literal(std::string_view pattern) noexcept {
  return pattern.find_first_of("*?[\\") == std::string_view::npos;
}

bool program_matches(std::string_view pattern, std::string_view path) noexcept {
  if (pattern.find('/') == std::string_view::npos)
    path.remove_prefix(path.rfind('/') + 1); // npos + 1 is 0
  return glob_matches(pattern, path);
}

} // namespace adverb::policy
