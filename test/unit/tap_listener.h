// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Writes one TAP line for each test case to $ADVERB_TAP_FILE, beside whatever Catch2 prints. A case
// that called skip() and failed in nothing is a skip with that reason.
//
// Not Catch2's own XML reporters: in v2 they swap the standard streams' buffers, and a child that a
// test forks and lets exit() then dies in its destructors. Included once, where main() is.
#pragma once

#include "catch.h"
#include "skip.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace adverb::test {

#if __has_include(<catch2/catch_all.hpp>)
using ListenerBase = Catch::EventListenerBase;
inline std::string name_of(const Catch::TestCaseInfo* info) {
  return info->name;
}
#else
using ListenerBase = Catch::TestEventListenerBase;
inline std::string name_of(const Catch::TestCaseInfo& info) {
  return info.name;
}
#endif

class TapListener : public ListenerBase {
public:
  using ListenerBase::ListenerBase;

  void testCaseStarting(const Catch::TestCaseInfo& /*info*/) override { skipped().clear(); }

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    const char* path = getenv("ADVERB_TAP_FILE");
    FILE* file = path == nullptr ? nullptr : fopen(path, "ae");
    if (file == nullptr)
      return;
    const bool good = stats.totals.assertions.failed == 0;
    std::string line = words(name_of(stats.testInfo));
    if (good && !skipped().empty())
      line += " # SKIP " + words(skipped());
    fprintf(file, "%s - %s\n", good ? "ok" : "not ok", line.c_str());
    fclose(file);
  }

private:
  static std::string words(std::string text) {
    for (char& c : text)
      c = c == '#' || c == '\n' ? ' ' : c;
    return text;
  }
};

CATCH_REGISTER_LISTENER(TapListener)

} // namespace adverb::test
