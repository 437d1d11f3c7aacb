// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Who carries requests to pinned regions of a peer: the first rule that matches a request decides.
#include "catch.h"
#include "test_policy_malformed.h"

#include "policy/format.h"
#include "policy/policy.h"
#include "policy/rule.h"

#include <infiniband/verbs.h>

using namespace adverb::policy;
using malformed::rules;

namespace {

std::unique_ptr<const Policy> load(const std::string& list, const char* program = "/usr/bin/prog") {
  Loaded loaded = load_text(rules(list), "FILE", program);
  for (const Error& error : loaded.errors)
    UNSCOPED_INFO(error.text());
  REQUIRE(loaded);
  return std::move(loaded.policy);
}

const in6_addr near_peer = *parse_address("10.1.2.3");
const in6_addr far_peer = *parse_address("11.0.0.1");
const QpQuery rc_near{"rxe0", IBV_QPT_RC, &near_peer};
const QpQuery rc_far{"rxe0", IBV_QPT_RC, &far_peer};
const QpQuery rc_unknown{"rxe0", IBV_QPT_RC};

struct Request {
  Opcode opcode = Opcode::write;
  uint64_t length = 8;
  uint64_t address = 0x1000;
};

Steer steer(const Policy& policy, const QpQuery& query, const Request& request = {}) {
  const auto list = policy.steering(query);
  const SteerRule* rule = deciding(list, request.opcode, request.length, request.address);
  return rule == nullptr ? Steer::offload : rule->steer;
}

std::string steered(const std::string& match, const char* word = "unload") {
  return R"({"match": {)" + match + R"(}, "steer": ")" + word + "\"}";
}

constexpr uint64_t last_byte = std::numeric_limits<uint64_t>::max();

const std::vector<malformed::Case> wrong = {
    {"a word that is none", rules(R"({"steer": "automatic"})"), "/rules/0/steer",
     "expected \"offload\", \"unload\" or \"auto\", got \"automatic\"", "did you mean \"auto\"?"},
    {"a list of words", rules(R"({"steer": ["auto"]})"), "/rules/0/steer", "got a list", ""},
    {"an opcode in capitals", rules(steered(R"("opcode": "WRITE")")), "/rules/0/match/opcode",
     "expected \"write\" or \"read\", got \"WRITE\"", "did you mean \"write\"?"},
    {"an opcode that cannot be steered", rules(steered(R"("opcode": ["read", "atomic"])")),
     "/rules/0/match/opcode/1", "expected \"write\" or \"read\"", ""},
    {"an opcode twice", rules(steered(R"("opcode": ["read", "read"])")), "/rules/0/match/opcode/1",
     "given twice", "remove one"},
    {"no opcode", rules(steered(R"("opcode": [])")), "/rules/0/match/opcode", "the list is empty",
     "remove the key"},
    {"opcode as a number", rules(steered(R"("opcode": 1)")), "/rules/0/match/opcode",
     "expected \"write\" or \"read\" or a list, got 1", ""},
    {"length as a size", rules(steered(R"("length": "4KiB")")), "/rules/0/match/length",
     "expected an object, got \"4KiB\"", ""},
    {"a length without a unit", rules(steered(R"("length": {"max": 4096})")),
     "/rules/0/match/length/max", "expected a size", "\"4096B\"?"},
    {"an unknown bound of lengths", rules(steered(R"("length": {"most": "4KiB"})")),
     "/rules/0/match/length/most", "unknown key", "\"min\" and \"max\""},
    {"lengths the wrong way round", rules(steered(R"("length": {"min": "2KiB", "max": "1KiB"})")),
     "/rules/0/match/length/min", "the rule can never fire: min \"2KiB\" is above max \"1KiB\"",
     "swap them"},
    {"an address without 0x", rules(steered(R"("remote_address": {"from": "7f00"})")),
     "/rules/0/match/remote_address/from",
     "expected a memory address such as \"0x7f0000000000\", got \"7f00\"",
     "did you mean \"0x7f00\"?"},
    {"an address of 17 digits",
     rules(steered(R"("remote_address": {"to": "0x00000000000000001"})")),
     "/rules/0/match/remote_address/to", "expected a memory address", ""},
    {"an address of no digit", rules(steered(R"("remote_address": {"to": "0x"})")),
     "/rules/0/match/remote_address/to", "expected a memory address", ""},
    {"a negative address", rules(steered(R"("remote_address": {"from": -1})")),
     "/rules/0/match/remote_address/from", "expected an integer from 0 to", ""},
    {"a number that others would round",
     rules(steered(R"("remote_address": {"from": 9007199254740993})")),
     "/rules/0/match/remote_address/from", "expected an integer from 0 to 9007199254740991", ""},
    {"half an address", rules(steered(R"("remote_address": {"from": 0.5})")),
     "/rules/0/match/remote_address/from", "or an integer, got 0.5", ""},
    {"a range the wrong way round",
     rules(steered(R"("remote_address": {"from": "0x2000", "to": 4096})")),
     "/rules/0/match/remote_address/from", "can never fire: from \"0x2000\" is above to 4096",
     "swap them"},
    {"requests of a region rule", rules(R"({"match": {"opcode": "read"}, "register": "none"})"),
     "/rules/0/match/opcode", "\"opcode\" does not apply to the action \"register\"",
     "only requests have it; put \"register\" into a rule without \"opcode\""},
    {"requests of a rule with both kinds of action",
     rules(R"({"match": {"length": {"max": "1KiB"}}, "steer": "unload", "order": "relaxed"})"),
     "/rules/0/match/length", "\"length\" does not apply to the action \"order\"",
     "put \"order\" into a rule without \"length\""},
    {"addresses of a copy_below rule",
     rules(R"({"match": {"remote_address": {"to": "0xff"}}, "copy_below": "1KiB"})"),
     "/rules/0/match/remote_address", "does not apply to the action \"copy_below\"", ""},
    {"the size of a region", rules(steered(R"("max_size": "1KiB")")), "/rules/0/match/max_size",
     "\"max_size\" does not apply to the action \"steer\"", "use \"length\""},
    {"the rights of a region", rules(steered(R"("access": ["remote"])")), "/rules/0/match/access",
     "\"access\" does not apply to the action \"steer\"", ""},
    {"datagrams", rules(steered(R"("qp_type": ["UD"])")), "/rules/0/match/qp_type",
     "can never fire: these queue pairs have no such requests", "add \"RC\""},
    {"READs of UC", rules(steered(R"("qp_type": ["UC"], "opcode": "read")")),
     "/rules/0/match/qp_type", "can never fire", "add \"RC\""},
};

// What an earlier rule and a later one match, and whether the earlier one hides the later one.
struct Pair {
  const char* earlier;
  const char* later;
  bool hides;
};
const std::vector<Pair> pairs = {
    {R"()", R"("opcode": "write")", true},
    {R"("opcode": ["write", "read"])", R"()", true},
    {R"("opcode": "write")", R"()", false},
    {R"("opcode": "write")", R"("opcode": "read")", false},
    {R"("length": {"max": "4KiB"})", R"("length": {"max": "4096B"})", true},
    {R"("length": {"max": "4KiB"})", R"("length": {"max": "4097B"})", false},
    {R"("length": {"min": "1B"})", R"()", false},
    {R"("length": {"min": "0B"})", R"()", true},
    {R"("remote_address": {"from": "0x1000", "to": "0x1fff"})",
     R"("remote_address": {"from": 4096, "to": 8191})", true},
    {R"("remote_address": {"from": "0x1000", "to": "0x1fff"})",
     R"("remote_address": {"from": 4095, "to": 8191})", false},
    {R"("remote_address": {"to": "0xffffffffffffffff"})", R"()", true},
    {R"("qp_type": ["RC"])", R"("qp_type": ["RC"], "opcode": "write")", true},
    {R"("qp_type": ["RC"])", R"("qp_type": ["RC", "UC"], "opcode": "write")", false},
    {R"("qp_type": ["RC", "UC", "UD"])", R"()", false}, // there are other types
    {R"("peer": "10.0.0.0/8")", R"("peer": "10.1.0.0/16")", true},
    {R"("peer": "10.1.0.0/16")", R"("peer": "10.0.0.0/8")", false},
    {R"("device": "rxe*")", R"("device": "rxe0", "opcode": "read")", true},
    {R"("program": "a")", R"("program": "b")", false},
};

} // namespace

TEST_CASE("a wrong steering rule names its place and the remedy") {
  malformed::check(wrong);
}

TEST_CASE("without a rule the NIC carries all requests") {
  const auto policy = load(R"({"peers": "auto"})");
  CHECK(policy->steering(rc_near).empty());
  CHECK_FALSE(policy->steers(rc_near));
  CHECK(steer(*policy, rc_near) == Steer::offload);
}

TEST_CASE("a rule steers each request, or those that it matches") {
  CHECK(steer(*load(steered("")), rc_near) == Steer::unload);
  CHECK(steer(*load(steered("", "auto")), rc_near) == Steer::automatic);
  const auto reads = load(steered(R"("opcode": "read")"));
  CHECK(steer(*reads, rc_near, {Opcode::read}) == Steer::unload);
  CHECK(steer(*reads, rc_near, {Opcode::write}) == Steer::offload);
}

TEST_CASE("bounds of lengths and addresses are inclusive") {
  const auto lengths = load(steered(R"("length": {"min": "2B", "max": "4KiB"})"));
  for (const auto& [length, inside] :
       std::vector<std::pair<uint64_t, bool>>{{1, false}, {2, true}, {4096, true}, {4097, false}})
    CHECK((steer(*lengths, rc_near, {Opcode::write, length}) == Steer::unload) == inside);
  const auto addresses = load(steered(R"("remote_address": {"from": 4096, "to": "0x1FFF"})"));
  for (const auto& [address, inside] : std::vector<std::pair<uint64_t, bool>>{
           {4095, false}, {4096, true}, {8191, true}, {8192, false}, {last_byte, false}})
    CHECK((steer(*addresses, rc_near, {Opcode::write, 8, address}) == Steer::unload) == inside);
  const auto upper = load(steered(R"("remote_address": {"from": "0xffffffffffffffff"})"));
  CHECK(steer(*upper, rc_near, {Opcode::write, 8, last_byte}) == Steer::unload);
  CHECK(steer(*upper, rc_near, {Opcode::write, 8, last_byte - 1}) == Steer::offload);
}

TEST_CASE("the first rule that matches the request decides, and can be counted") {
  const auto policy = load(R"({"order": "relaxed"},)" +
                           steered(R"("opcode": "write", "length": {"max": "64B"})", "offload") +
                           "," + steered(R"("opcode": "write")") + "," + steered("", "auto"));
  CHECK(steer(*policy, rc_near, {Opcode::write, 64}) == Steer::offload);
  CHECK(steer(*policy, rc_near, {Opcode::write, 65}) == Steer::unload);
  CHECK(steer(*policy, rc_near, {Opcode::read, 64}) == Steer::automatic);
  const auto list = policy->steering(rc_near);
  REQUIRE(list.size() == 3);
  policy->steered_by(*deciding(list, Opcode::write, 65, 0));
  const auto hits = policy->hits();
  REQUIRE(hits.size() == 4);
  CHECK(hits[1].hits == 0); // a list that is only asked for counts nothing
  CHECK(hits[2].hits == 1);
}

TEST_CASE("a queue pair gets the rules that can match it, up to one for all its requests") {
  const auto policy =
      load(steered(R"("device": "mlx5_*")", "auto") + "," + steered(R"("peer": "10.0.0.0/8")") +
           "," + steered(R"("qp_type": ["UC"])", "auto") + "," + steered("", "offload"));
  CHECK(policy->steering(rc_near).size() == 1);
  CHECK(steer(*policy, rc_near) == Steer::unload);
  CHECK(steer(*policy, rc_far) == Steer::offload);
  CHECK(steer(*policy, {"mlx5_0", IBV_QPT_RC, &far_peer}) == Steer::automatic);
  CHECK(steer(*policy, {"rxe0", IBV_QPT_UC, &far_peer}) == Steer::automatic);
  CHECK(policy->steers(rc_near));
  CHECK_FALSE(policy->steers(rc_far));
  CHECK(policy->steers({"mlx5_0", IBV_QPT_RC, &far_peer}));
}

TEST_CASE("a rule behind one for all requests of the queue pair steers nothing") {
  const auto policy = load(steered(R"("qp_type": ["RC"])", "offload") + "," + steered(""));
  CHECK_FALSE(policy->steers(rc_near));
  CHECK(policy->steering(rc_near).size() == 1);
  CHECK(policy->steers({"rxe0", IBV_QPT_UC, &near_peer}));
}

TEST_CASE("while the peer is unknown, a rule for certain peers leaves requests to the NIC") {
  const auto policy = load(steered(R"("peer": "10.0.0.0/8", "opcode": "write")") + "," +
                           steered(R"("opcode": ["write", "read"])", "auto"));
  CHECK(steer(*policy, rc_unknown, {Opcode::write}) == Steer::offload);
  CHECK(steer(*policy, rc_unknown, {Opcode::read}) == Steer::automatic);
  CHECK(steer(*policy, rc_near, {Opcode::write}) == Steer::unload);
  CHECK(steer(*policy, rc_far, {Opcode::write}) == Steer::automatic);
  CHECK_FALSE(load(steered(R"("peer": "10.0.0.0/8")"))->steers(rc_unknown));
  CHECK(policy->steers(rc_unknown));
}

TEST_CASE("rules for other programs steer nothing, and positions are those of the rest") {
  const std::string list =
      steered(R"("program": "other")", "auto") + "," + steered(R"("program": "prog")");
  const auto policy = load(list);
  REQUIRE(policy->steering(rc_near).size() == 1);
  CHECK(policy->rules()[policy->steering(rc_near)[0].rule].index == 1);
  CHECK(steer(*policy, rc_near) == Steer::unload);
  CHECK_FALSE(load(list, "/usr/bin/third")->steers(rc_near));
}

TEST_CASE("a steering rule that earlier ones leave no request is an error") {
  for (const Pair& pair : pairs) {
    INFO(pair.earlier << "\n" << pair.later);
    const Loaded loaded =
        load_text(rules(steered(pair.earlier) + "," + steered(pair.later, "auto")), "FILE");
    CHECK(static_cast<bool>(loaded) != pair.hides);
    if (pair.hides)
      CHECK(loaded.errors.at(0).text() ==
            "FILE: /rules/1: the rule can never fire: \"rule 0\" always decides first; "
            "move it up, narrow the earlier match, or remove it");
  }
}

TEST_CASE("several earlier rules can leave a later one no request together") {
  const std::string small = steered(R"("length": {"max": "64B"})");
  const std::string writes = steered(R"("opcode": "write")", "offload");
  const std::string low = steered(R"("remote_address": {"to": "0xffff"})");
  const std::string high = steered(R"("remote_address": {"from": "0x10000"})");
  const std::string large_high =
      steered(R"("length": {"min": "65B"}, "remote_address": {"from": "0x10000"})");
  const std::string larger_high =
      steered(R"("length": {"min": "66B"}, "remote_address": {"from": "0x10000"})");
  const auto fires = [](const std::string& earlier, const std::string& match) {
    return static_cast<bool>(load_text(rules(earlier + "," + steered(match, "auto")), "FILE"));
  };
  CHECK_FALSE(fires(low + "," + high, ""));
  CHECK_FALSE(fires(small + "," + low + "," + large_high, ""));
  CHECK(fires(small + "," + low + "," + larger_high, ""));
  CHECK_FALSE(fires(small + "," + writes, R"("opcode": "write")"));
  CHECK_FALSE(fires(small + "," + writes, R"("opcode": "read", "length": {"max": "8B"})"));
  CHECK(fires(small + "," + writes, R"("opcode": "read")"));
}

TEST_CASE("the profile steer pins all regions, and lets small WRITEs go by the faster way") {
  const auto loaded = load_profile("steer", "/p");
  REQUIRE(loaded);
  const Policy& policy = *loaded.policy;
  for (unsigned access : {0u, 2u, 4u, 8u, 15u})
    CHECK(policy.region({"d", 1, access}).name == "pinned");
  CHECK(policy.ask<&Rule::peers>(rc_far) == Peers::automatic);
  CHECK(steer(policy, rc_far, {Opcode::write, 4096}) == Steer::automatic);
  CHECK(steer(policy, rc_far, {Opcode::write, 4097}) == Steer::offload);
  CHECK(steer(policy, rc_far, {Opcode::read, 8}) == Steer::offload);
}

TEST_CASE("reliability in software has the peer's CPU carry what no rule steers") {
  const std::string list = R"(
    {"match": {"opcode": "read", "length": {"max": "8B"}}, "steer": "offload"},
    {"name": "near", "match": {"peer": ["10.0.0.0/8"]}, "reliability": "device"},
    {"name": "far", "reliability": "software"})";
  const auto policy = load(list);
  CHECK(policy->ask<&Rule::reliability>(rc_near) == Reliability::device);
  CHECK(policy->ask<&Rule::reliability>(rc_far) == Reliability::software);
  CHECK(policy->ask<&Rule::reliability>(rc_unknown) == Reliability::device); // it may be near
  CHECK(steer(*policy, rc_far) == Steer::unload);
  CHECK(steer(*policy, rc_far, {Opcode::read, 8}) == Steer::offload);
  CHECK(steer(*policy, rc_far, {Opcode::read, 9}) == Steer::unload);
  CHECK(steer(*policy, rc_near) == Steer::offload);
  CHECK(steer(*policy, rc_unknown) == Steer::offload);
  CHECK(policy->steers(rc_far));
  CHECK_FALSE(policy->steers(rc_near));
  const auto rules = policy->steering(rc_far);
  REQUIRE(rules.size() == 2);
  CHECK(policy->rules()[rules[1].rule].name == "far");
  // Without such a rule it is the device's.
  CHECK(load(R"({"peers": "auto"})")->ask<&Rule::reliability>(rc_far) == Reliability::device);
  // A rule that steers all leaves nothing to be steered by it.
  const auto all = load(R"({"steer": "offload"}, {"reliability": "software"})");
  CHECK(steer(*all, rc_far) == Steer::offload);
}

TEST_CASE("reliability by measurement has the peer's CPU carry requests while packets pay") {
  const auto policy = load(R"(
    {"match": {"opcode": "read"}, "steer": "unload"}, {"name": "far", "reliability": "auto"})");
  CHECK(policy->ask<&Rule::reliability>(rc_far) == Reliability::automatic);
  CHECK(policy->steering(rc_far).size() == 2);
  CHECK(policy->steering(rc_far, true).size() == 2);
  CHECK(policy->steering(rc_far, false).size() == 1); // the other rule stands
  CHECK(policy->steers(rc_far));
  CHECK(policy->repairs("rxe0", IBV_QPT_RC));
  const auto alone = load(R"({"reliability": "auto"})");
  CHECK(alone->steering(rc_far, false).empty());
  CHECK(alone->steers(rc_far)); // at times
  // A queue pair keeps what another policy has said of it.
  const auto now = load(R"({"reliability": "device"})")->steering(rc_far, true);
  REQUIRE(now.size() == 1);
  CHECK(now[0].of == nullptr); // nobody's to count
}

TEST_CASE("reliability is a word, and is hidden by an earlier rule for all peers") {
  CHECK_FALSE(load_text(rules(R"({"reliability": "hardware"})"), "FILE"));
  CHECK_FALSE(load_text(rules(R"({"reliability": "software"},
                                 {"match": {"peer": ["10.0.0.0/8"]}, "reliability": "device"})"),
                        "FILE"));
  CHECK_FALSE(
      load_text(rules(R"({"match": {"min_size": "1KiB"}, "reliability": "software"})"), "FILE"));
}

TEST_CASE("the profile far pins all regions, and has WRITEs and READs go by packets") {
  const auto loaded = load_profile("far", "/p");
  REQUIRE(loaded);
  const Policy& policy = *loaded.policy;
  CHECK(policy.region({"d", 1, 15u}).name == "pinned");
  CHECK(policy.ask<&Rule::reliability>(rc_far) == Reliability::software);
  CHECK(steer(policy, rc_far, {Opcode::write, 1 << 20}) == Steer::unload);
  CHECK(policy.staging() == uint64_t{64} << 20);
}
