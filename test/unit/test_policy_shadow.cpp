// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A rule that earlier rules leave nothing to decide is an error; one they only overlap is not.
#include "catch.h"
#include "test_policy_malformed.h"

using namespace adverb::policy;
using namespace malformed;

namespace {

const std::vector<Case> shadows = {
    {"a rule after one for everything",
     rules(
         R"({"name": "all", "register": "none"}, {"match": {"program": "x"}, "register": "pinned"})"),
     "/rules/1", "can never fire: \"all\" always decides first", "move it up"},
    {"the same rule again", rules(R"({"peers": "none"}, {"peers": "auto"})"), "/rules/1",
     "can never fire", ""},
    {"a literal program after its pattern",
     rules(R"({"match": {"program": "ib_*"}, "peers": "none"},
              {"match": {"program": "ib_write_bw"}, "peers": "auto"})"),
     "/rules/1", "can never fire", ""},
    {"a path after the name of its file", rules(R"({"match": {"program": "rping"}, "peers": "none"},
              {"match": {"program": "/usr/bin/rping"}, "peers": "auto"})"),
     "/rules/1", "can never fire", ""},
    {"a narrower peer range", rules(R"({"match": {"peer": "10.0.0.0/8"}, "peers": "none"},
              {"match": {"peer": "10.1.0.0/16"}, "peers": "auto"})"),
     "/rules/1", "can never fire", ""},
    {"a right that remote holds", rules(R"({"match": {"access": ["remote"]}, "register": "pinned"},
              {"match": {"access": ["remote_write"]}, "register": "none"})"),
     "/rules/1", "can never fire", ""},
    {"everything after local and remote",
     rules(R"({"match": {"access": ["remote"]}, "register": "pinned"},
              {"match": {"access": ["local_only"]}, "register": "none"},
              {"name": "rest", "register": "pinned"})"),
     "/rules/2", "\"rule 0\" and \"rule 1\" always decide first", ""},
    {"sizes that two rules cover together",
     rules(R"({"match": {"max_size": "64KiB"}, "register": "pinned"},
              {"match": {"min_size": "32KiB", "max_size": "1MiB"}, "register": "none"},
              {"match": {"min_size": "4KiB", "max_size": "512KiB"}, "register": "pinned"})"),
     "/rules/2", "can never fire", ""},
    {"one action of two",
     rules(R"({"name": "all", "peers": "none"}, {"peers": "auto", "order": "relaxed"})"),
     "/rules/1/peers", "can never take effect: \"all\" always decides first", ""},
    {"a queue pair type after all three and more",
     rules(R"({"match": {"device": "*"}, "order": "relaxed"},
              {"match": {"qp_type": ["RC"], "device": "mlx5_?"}, "order": "strict"})"),
     "/rules/1", "can never fire", ""},
    {"copy_below of a device already decided",
     rules(R"({"match": {"device": "rxe*"}, "copy_below": "4KiB"},
              {"match": {"device": "rxe0"}, "copy_below": "8KiB"})"),
     "/rules/1", "can never fire", ""},
};

} // namespace

TEST_CASE("a rule that can never fire is an error") {
  check(shadows);
}

TEST_CASE("rules that only overlap are no error") {
  for (const std::string& text : {
           rules(R"({"match": {"peer": "10.1.0.0/16"}, "peers": "none"},
                    {"match": {"peer": "10.0.0.0/8"}, "peers": "auto"})"),
           rules(R"({"match": {"program": "ib_*"}, "peers": "none"},
                    {"match": {"program": "*_bw"}, "peers": "auto"})"),
           rules(R"({"match": {"access": ["remote_write"]}, "register": "pinned"},
                    {"match": {"access": ["remote"]}, "register": "none"})"),
           rules(R"({"match": {"max_size": "64KiB"}, "register": "pinned"},
                    {"match": {"min_size": "64KiB"}, "register": "none"})"),
           rules(R"({"match": {"qp_type": ["RC", "UC", "UD"]}, "peers": "none"},
                    {"peers": "auto"})"),
           rules(R"({"match": {"device": "rxe0"}, "copy_below": "4KiB"},
                    {"match": {"device": "rxe*"}, "copy_below": "8KiB"})"),
           rules(R"({"match": {"program": "/opt/x/rping"}, "peers": "none"},
                    {"match": {"program": "rping"}, "peers": "auto"})"),
       }) {
    const Loaded loaded = load_text(text, "FILE");
    INFO(text << (loaded.errors.empty() ? "" : loaded.errors[0].text()));
    CHECK(loaded);
  }
}
