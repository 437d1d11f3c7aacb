// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A test case that cannot be tried on this host says so, and returns. Catch2 v2 has no word for
// that.
#pragma once

#include "catch.h"

#include <string>

namespace adverb::test {

// Why the case that runs was skipped; empty: it was not. The listener asks, and empties it for each
// case.
inline std::string& skipped() {
  static std::string why;
  return why;
}

// To be followed by `return`. What has failed before stays a failure.
inline void skip(const char* why) {
  skipped() = why;
  WARN("skipped: " << why);
}

} // namespace adverb::test
