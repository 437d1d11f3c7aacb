// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One malformed policy and what must be said about it.
#pragma once

#include "catch.h"

#include "policy/policy.h"

#include <algorithm>

namespace malformed {

constexpr const char* anywhere = nullptr;

struct Case {
  const char* promise;
  std::string text;
  const char* pointer; // where the error must be, or anywhere
  const char* reason;  // a part of the reason
  const char* remedy;  // a part of the remedy, "" if it does not matter
};

inline std::string root(const std::string& members) {
  return R"({"version": 1, )" + members + "}";
}
inline std::string rules(const std::string& list) {
  return root(R"("rules": [)" + list + "]");
}
inline std::string match(const std::string& members) {
  return rules(R"({"match": {)" + members + R"(}, "register": "none"})");
}
inline std::string qp_match(const std::string& members) {
  return rules(R"({"match": {)" + members + R"(}, "peers": "none"})");
}
inline std::string link(const std::string& members) {
  return root(R"("link": {)" + members + "}");
}
inline void check(const std::vector<Case>& cases) {
  for (const Case& entry : cases) {
    INFO(entry.promise << "\n" << entry.text.substr(0, 200));
    const adverb::policy::Loaded loaded = adverb::policy::load_text(entry.text, "FILE");
    std::string all;
    for (const adverb::policy::Error& error : loaded.errors)
      all += error.text() + "\n";
    INFO(all);
    CHECK_FALSE(loaded);
    CHECK(std::ranges::any_of(loaded.errors, [&](const adverb::policy::Error& error) {
      return error.file == "FILE" &&
             (entry.pointer == anywhere || error.pointer == entry.pointer) &&
             error.reason.find(entry.reason) != std::string::npos &&
             error.remedy.find(entry.remedy) != std::string::npos;
    }));
  }
}

} // namespace malformed
