// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The first rule that matches and sets an action wins, and is counted.
#include "catch.h"

#include "policy/format.h"
#include "policy/glob.h"
#include "policy/policy.h"
#include "policy/rule.h"

#include <infiniband/verbs.h>

using namespace adverb::policy;

// The policy room includes no verbs header; these are the numbers it relies on.
static_assert(IBV_QPT_RC == 2 && IBV_QPT_UC == 3 && IBV_QPT_UD == 4);
static_assert(IBV_ACCESS_REMOTE_WRITE == 2 && IBV_ACCESS_REMOTE_READ == 4 &&
              IBV_ACCESS_REMOTE_ATOMIC == 8);

namespace {

std::unique_ptr<const Policy> load(const std::string& text, const char* program = "/usr/bin/prog") {
  Loaded loaded = load_text(text, "FILE", program);
  for (const Error& error : loaded.errors)
    UNSCOPED_INFO(error.text());
  REQUIRE(loaded);
  return std::move(loaded.policy);
}

std::unique_ptr<const Policy> load_rules(const std::string& rules,
                                         const char* program = "/usr/bin/prog") {
  return load(R"({"version": 1, "rules": [)" + rules + "]}", program);
}

in6_addr address(const char* text) {
  return *parse_address(text);
}

std::vector<uint64_t> hits(const Policy& policy) {
  std::vector<uint64_t> result;
  for (const RuleHits& rule : policy.hits())
    result.push_back(rule.hits);
  return result;
}

constexpr unsigned local = IBV_ACCESS_LOCAL_WRITE;
constexpr unsigned remote_write = local | IBV_ACCESS_REMOTE_WRITE;
constexpr unsigned remote_read = IBV_ACCESS_REMOTE_READ;

} // namespace

TEST_CASE("without rules a policy leaves regions pinned, asks peers and keeps order") {
  const auto policy = load(R"({"version": 1})");
  CHECK(policy->region({"rxe0", 4096, local}).name == "pinned");
  CHECK(policy->ask<&Rule::peers>({"rxe0", IBV_QPT_RC}) == Peers::automatic);
  CHECK(policy->ask<&Rule::order>({"rxe0", IBV_QPT_RC}) == Order::strict);
  CHECK_FALSE(policy->copy_below("rxe0"));
  CHECK_FALSE(policy->may_unpin("rxe0"));
  CHECK_FALSE(policy->idle());
  CHECK(policy->staging() == 16u << 20);
  CHECK_FALSE(policy->pinned_budget());
}

TEST_CASE("a budget is a size, or as by default where it is said to be automatic") {
  CHECK(load(R"({"version": 1, "pinned_budget": "16MiB"})")->pinned_budget() == 16u << 20);
  CHECK_FALSE(load(R"({"version": 1, "pinned_budget": "auto"})")->pinned_budget());
}

TEST_CASE("the CPU serves pinned regions, too, unless the policy says that it does not") {
  CHECK(load(R"({"version": 1})")->serves());
  CHECK(load(R"({"version": 1, "serve": true})")->serves());
  CHECK_FALSE(load(R"({"version": 1, "serve": false})")->serves());
}

TEST_CASE("access matches the remote rights of a region, whatever other bits it has") {
  const auto policy = load_rules(R"(
    {"match": {"access": ["remote_write"]}, "register": "none"},
    {"match": {"access": ["local_only"]}, "register": "none"})");
  CHECK(policy->region({"d", 1, 0}).name == "none");
  CHECK(policy->region({"d", 1, local | IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_HUGETLB}).name ==
        "none");
  CHECK(policy->region({"d", 1, remote_read}).name == "pinned");
  CHECK(policy->region({"d", 1, remote_write}).name == "none");
  CHECK(policy->region({"d", 1, remote_write | remote_read}).name == "none");
  CHECK(policy->region({"d", 1, IBV_ACCESS_REMOTE_ATOMIC}).name == "pinned");
  CHECK(hits(*policy) == std::vector<uint64_t>{2, 2});
}

TEST_CASE("min_size and max_size are inclusive") {
  const auto policy =
      load_rules(R"({"match": {"min_size": "4KiB", "max_size": "8KiB"}, "register": "none"})");
  CHECK(policy->region({"d", 4095, 0}).name == "pinned");
  CHECK(policy->region({"d", 4096, 0}).name == "none");
  CHECK(policy->region({"d", 8192, 0}).name == "none");
  CHECK(policy->region({"d", 8193, 0}).name == "pinned");
  CHECK(policy->region({"d", 0, 0}).name == "pinned");
  CHECK(policy->region({"d", UINT64_MAX, 0}).name == "pinned");
}

TEST_CASE("the first matching rule wins for each action on its own") {
  const auto policy = load_rules(R"(
    {"match": {"device": "rxe*"}, "peers": "none"},
    {"match": {"device": "rxe1"}, "register": "none", "copy_below": "4KiB"},
    {"register": "pinned", "peers": "auto", "order": "relaxed"})");
  CHECK(policy->ask<&Rule::peers>({"rxe1", IBV_QPT_RC}) == Peers::none);
  CHECK(policy->ask<&Rule::peers>({"mlx5_0", IBV_QPT_RC}) == Peers::automatic);
  CHECK(policy->ask<&Rule::order>({"rxe1", IBV_QPT_RC}) == Order::relaxed);
  CHECK(policy->region({"rxe1", 1, remote_write}).name == "none");
  CHECK(policy->region({"rxe0", 1, remote_write}).name == "pinned");
  CHECK(policy->copy_below("rxe1") == 4096u);
  CHECK_FALSE(policy->copy_below("rxe0"));
  CHECK(hits(*policy) == std::vector<uint64_t>{1, 2, 3});
}

TEST_CASE("program matches the last part of the path, or all of it when the glob has a slash") {
  const std::string rule =
      R"({"match": {"program": ["ib_*", "/opt/*/rping"]}, "register": "none"})";
  for (const auto& [program, matches] : std::vector<std::pair<const char*, bool>>{
           {"/usr/bin/ib_write_bw", true},
           {"/usr/ib_tools/other", false},
           {"/opt/x/y/rping", true},
           {"/usr/bin/rping", false},
       }) {
    INFO(program);
    const auto policy = load_rules(rule, program);
    CHECK(policy->may_unpin("d") == matches);
    CHECK(policy->rules().size() == (matches ? 1u : 0u));
  }
}

TEST_CASE("qp_type matches only the types it lists") {
  const auto policy = load_rules(R"({"match": {"qp_type": ["RC", "UD"]}, "peers": "none"})");
  CHECK(policy->ask<&Rule::peers>({"d", IBV_QPT_RC}) == Peers::none);
  CHECK(policy->ask<&Rule::peers>({"d", IBV_QPT_UD}) == Peers::none);
  CHECK(policy->ask<&Rule::peers>({"d", IBV_QPT_UC}) == Peers::automatic);
  for (int type : {-1, 0, 8, 9, 31, 32, 255})
    CHECK(policy->ask<&Rule::peers>({"d", type}) == Peers::automatic);
}

TEST_CASE("peer matches by address, and the safe answer holds while it is unknown") {
  const auto policy = load_rules(R"(
    {"match": {"peer": ["10.0.0.0/8", "fe80::/10"]}, "order": "relaxed", "peers": "auto"},
    {"peers": "none"})");
  const in6_addr inside = address("10.1.2.3"), outside = address("11.0.0.1");
  const in6_addr scoped = address("fe80::1"), mapped = address("::ffff:10.9.9.9");
  CHECK(policy->ask<&Rule::peers>({"d", IBV_QPT_RC, &inside}) == Peers::automatic);
  CHECK(policy->ask<&Rule::peers>({"d", IBV_QPT_RC, &scoped}) == Peers::automatic);
  CHECK(policy->ask<&Rule::peers>({"d", IBV_QPT_RC, &mapped}) == Peers::automatic);
  CHECK(policy->ask<&Rule::peers>({"d", IBV_QPT_RC, &outside}) == Peers::none);
  CHECK(policy->ask<&Rule::peers>({"d", IBV_QPT_RC}) == Peers::automatic);
  CHECK(policy->ask<&Rule::order>({"d", IBV_QPT_RC, &inside}) == Order::relaxed);
  CHECK(policy->ask<&Rule::order>({"d", IBV_QPT_RC}) == Order::strict);
  CHECK(hits(*policy) == std::vector<uint64_t>{4, 1});
}

TEST_CASE("peers none for a range still manages queue pairs until the peer is known") {
  const auto policy =
      load_rules(R"({"match": {"peer": "10.0.0.0/8"}, "peers": "none", "order": "strict"})");
  CHECK(policy->ask<&Rule::peers>({"d", IBV_QPT_RC}) == Peers::automatic);
  CHECK_FALSE(policy->idle());
}

TEST_CASE("may_unpin is false only when no region of the device can be unpinned") {
  const auto policy = load_rules(R"(
    {"match": {"device": "mlx5_*"}, "register": "pinned"},
    {"match": {"device": "rxe0", "max_size": "4KiB"}, "register": "pinned"},
    {"match": {"device": ["rxe*", "mlx5_7"]}, "register": "none"})");
  CHECK_FALSE(policy->may_unpin("mlx5_0"));
  CHECK_FALSE(policy->may_unpin("mlx5_7"));
  CHECK(policy->may_unpin("rxe0"));
  CHECK_FALSE(policy->may_unpin("siw0"));
  CHECK(load_rules(R"({"register": "odp"})")->may_unpin("siw0"));
}

TEST_CASE("idle holds only when neither regions nor peers can be touched") {
  const auto idle = [](const char* rules) { return load_rules(rules)->idle(); };
  CHECK(idle(R"({"peers": "none"})"));
  CHECK(idle(R"({"register": "pinned", "peers": "none", "order": "relaxed"})"));
  CHECK(idle(R"({"match": {"program": "other"}, "register": "none"}, {"peers": "none"})"));
  CHECK(idle(R"({"match": {"device": "*"}, "peers": "none"})"));
  CHECK_FALSE(idle(R"({"register": "none", "peers": "none"})"));
  CHECK_FALSE(idle(R"({"register": "odp", "peers": "none"})"));
  CHECK_FALSE(idle(R"({"match": {"device": "rxe*"}, "peers": "none"})"));
  CHECK_FALSE(idle(R"({"match": {"qp_type": ["RC"]}, "peers": "none"})"));
  CHECK_FALSE(idle(R"({"match": {"qp_type": ["RC"]}, "peers": "auto"}, {"peers": "none"})"));
  CHECK_FALSE(idle(R"({"match": {"program": "other"}, "peers": "none"})"));
}

TEST_CASE("a policy that unpins what no peer will ever reach says so") {
  const auto strands = [](const char* rules) { return load_rules(rules)->strands_remote(); };
  CHECK(strands(R"({"register": "none", "peers": "none"})"));
  CHECK(
      strands(R"({"match": {"access": ["remote_read"]}, "register": "none"}, {"peers": "none"})"));
  CHECK_FALSE(strands(R"({"match": {"access": ["local_only"]}, "register": "none"},
                         {"peers": "none"})"));
  CHECK_FALSE(strands(R"({"register": "none"}, {"match": {"qp_type": ["UD"]}, "peers": "none"})"));
  CHECK_FALSE(strands(R"({"register": "pinned", "peers": "none"})"));
  CHECK_FALSE(strands(R"({"register": "odp", "peers": "none"})")); // peers need no adverb
}

TEST_CASE("hits name the rule and its place in the file, also after rules for other programs") {
  const auto policy = load_rules(R"(
    {"match": {"program": "other"}, "register": "pinned"},
    {"name": "mine", "match": {"program": "prog"}, "register": "none"},
    {"register": "pinned"})");
  (void)policy->region({"d", 1, 0});
  const auto rules = policy->hits();
  REQUIRE(rules.size() == 2);
  CHECK((rules[0].index == 1 && rules[0].name == "mine" && rules[0].hits == 1));
  CHECK((rules[1].index == 2 && rules[1].name == "rule 2" && rules[1].hits == 0));
}

TEST_CASE("link settings are compiled") {
  const auto policy = load(R"({"version": 1, "link": {"port": 9, "hello_timeout": "20ms", "spin": 7,
    "allow": ["10.0.0.0/8", "fe80::/10", "192.168.7.9"],
    "peers": {"10.0.0.1": "192.168.0.1", "lid:300": "fe80::7", "guid:0002:c903:0000:1234": "::1",
              "fd00::5": "10.9.9.9"}}, "log": {"level": "info", "file": "/tmp/x"}})");
  const LinkSettings& link = policy->link();
  CHECK(link.port == 9);
  CHECK(link.hello_timeout.count() == 20);
  CHECK(link.spin.count() == 7);
  CHECK(link.proof == Proof::others);
  CHECK(link.broker == BrokerPlace::inside);
  CHECK(load(R"({"version": 1, "link": {"broker": "process"}})")->link().broker ==
        BrokerPlace::process);
  CHECK(load(R"({"version": 1, "link": {"proof": "all"}})")->link().proof == Proof::all);
  CHECK(link.allowed(address("10.255.0.1")));
  CHECK(link.allowed(address("febf::1")));
  CHECK(link.allowed(address("192.168.7.9")));
  CHECK_FALSE(link.allowed(address("192.168.7.8")));
  CHECK_FALSE(link.allowed(address("fec0::1")));
  CHECK_FALSE(link.allowed(address("::1")));
  CHECK_FALSE(link.allowed(address("::10.0.0.1"))); // not v4-mapped: another address altogether

  const auto gid = [](const char* text) {
    std::array<uint8_t, 16> bytes{};
    const in6_addr parsed = address(text);
    std::copy(std::begin(parsed.s6_addr), std::end(parsed.s6_addr), bytes.begin());
    return bytes;
  };
  const auto text = [](const std::optional<in6_addr>& found) {
    return found ? address_text(*found) : "none";
  };
  CHECK(text(link.mapped_peer(gid("::ffff:10.0.0.1"))) == "192.168.0.1");
  CHECK(text(link.mapped_peer(gid("fd00::5"))) == "10.9.9.9");
  CHECK(text(link.mapped_peer(gid("fe80::2:c903:0:1234"))) == "::1");
  CHECK(text(link.mapped_peer(gid("fe80::1"))) == "none");
  CHECK(text(link.mapped_lid(300)) == "fe80::7");
  CHECK(text(link.mapped_lid(301)) == "none");
  CHECK(policy->log().level == LogLevel::info);
  CHECK(policy->log().file == "/tmp/x");
}

TEST_CASE("globs match as shells do") {
  struct {
    const char* pattern;
    const char* text;
    bool matches;
  } const cases[] = {
      {"", "", true},
      {"", "a", false},
      {"*", "", true},
      {"*", "a/b", true},
      {"a*", "b", false},
      {"a*c", "abbc", true},
      {"a*c", "abcd", false},
      {"*a*b*", "xaybz", true},
      {"*a*b*", "xbya", false},
      {"?", "", false},
      {"?", "a", true},
      {"a?c", "abc", true},
      {"[ab]x", "bx", true},
      {"[ab]x", "cx", false},
      {"[a-c]", "b", true},
      {"[a-c]", "d", false},
      {"[!a-c]", "d", true},
      {"[!a-c]", "b", false},
      {"[]]", "]", true},
      {"[a-]", "-", true},
      {"[", "[", true},
      {"[a", "[a", true},
      {"\\*", "*", true},
      {"\\*", "a", false},
      {"a\\", "a\\", true},
      {"**b", "aab", true},
      {"mlx5_*", "mlx5_", true},
      {"*.*", "ab", false},
      {"a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaa", false},
  };
  for (const auto& entry : cases) {
    INFO(entry.pattern << " against " << entry.text);
    CHECK(glob_matches(entry.pattern, entry.text) == entry.matches);
  }
}
