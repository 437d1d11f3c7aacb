// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Whatever bytes a policy file holds: loading ends, and gives either a policy or errors.
#include "catch.h"

#include "policy/embedded.h"
#include "policy/policy.h"
#include "policy/rule.h"

#include <random>

using namespace adverb::policy;

namespace {

const std::vector<std::string>& seeds() {
  static const auto& texts = *new std::vector<std::string>([] {
    std::vector<std::string> result = {std::string(embedded_default), std::string(embedded_schema)};
    for (const EmbeddedProfile& profile : embedded_profiles)
      result.emplace_back(profile.text);
    result.emplace_back(R"({"version": 1, "link": {"port": 1, "hello_timeout": "1ms",
      "allow": ["::1"], "peers": {"lid:1": "10.0.0.1", "guid:0000000000000001": "::1"}},
      "log": {"level": "off", "file": "/x"}, "rules": [{"match": {"peer": ["::/0"],
      "qp_type": ["UC"]}, "order": "relaxed"}, {"copy_below": "1B"}]})");
    result.emplace_back(R"({"version": 1, "serve": false, "rules": [{"match": {"opcode": ["read"],
      "length": {"min": "1B", "max": "4KiB"}, "remote_address": {"from": "0x1000", "to": 8191}},
      "steer": "unload"}, {"match": {"opcode": "write", "qp_type": ["RC", "UC"]},
      "steer": "auto"}, {"steer": "offload"}]})");
    return result;
  }());
  return texts;
}

// Words that lead deeper than random bytes would.
const std::vector<std::string> words = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "\"",
                                        "\\",
                                        "null",
                                        "true",
                                        "-1",
                                        "1e308",
                                        "1e-400",
                                        "\"\"",
                                        "\"version\"",
                                        "\"rules\"",
                                        "\"match\"",
                                        "\"register\"",
                                        "\"none\"",
                                        "\"$comment\"",
                                        "\"peer\"",
                                        "\"min_size\"",
                                        "\"18446744073709551615B\"",
                                        "\"0B\"",
                                        "18446744073709551616",
                                        "\"\\u0000\"",
                                        "\"[\"",
                                        "\"*\"",
                                        "\"::/0\"",
                                        "\"length\"",
                                        "\"remote_address\"",
                                        "\"0xffffffffffffffff\"",
                                        "9007199254740992",
                                        "1e18",
                                        "\"1.2.3.4/0\"",
                                        "\xff",
                                        "\xef\xbb\xbf",
                                        std::string(1, '\0')};

std::string mutate(std::string text, std::mt19937& random) {
  const auto below = [&](size_t bound) { return random() % std::max<size_t>(bound, 1); };
  for (size_t count = 1 + below(6); count > 0; --count) {
    const size_t at = below(text.size() + 1),
                 length = below(std::min<size_t>(text.size() - at, 40) + 1);
    switch (below(5)) {
    case 0:
      text.insert(at, words[below(words.size())]);
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.replace(at, length, words[below(words.size())]);
      break;
    case 3:
      text.insert(below(text.size() + 1), text.substr(at, length));
      break;
    default:
      if (at < text.size())
        text[at] = static_cast<char>(below(256));
    }
  }
  return text;
}

} // namespace

TEST_CASE("no mutation of a policy crashes, and every refusal says why") {
  std::mt19937 random(20240607); // fixed, so that a failure can be repeated
  size_t accepted = 0, refused = 0;
  for (unsigned round = 0; round < 4000; ++round) {
    const std::string text = mutate(seeds()[random() % seeds().size()], random);
    const Loaded loaded = load_text(text, "FILE", "/usr/bin/prog");
    if (loaded) {
      ++accepted;
      (void)loaded.policy->region({"rxe0", random(), static_cast<unsigned>(random() & 15u)});
      (void)loaded.policy->ask<&Rule::peers>({"rxe0", static_cast<int>(random() % 10)});
      (void)deciding(loaded.policy->steering({"rxe0", static_cast<int>(random() % 10)}),
                     Opcode::read, random(), random());
    } else {
      ++refused;
      REQUIRE_FALSE(loaded.errors.empty());
      REQUIRE_FALSE(loaded.errors[0].reason.empty());
    }
  }
  // Both ways are exercised.
  CHECK(accepted > 20);
  CHECK(refused > 2000);
}

TEST_CASE("every prefix of a policy is refused") {
  const std::string text = R"({"version": 1, "rules": [{"match": {"access": ["remote"]}, )"
                           R"("register": "none"}]})";
  for (size_t length = 0; length < text.size(); ++length)
    CHECK_FALSE(load_text(text.substr(0, length), "FILE"));
  CHECK(load_text(text, "FILE"));
}
