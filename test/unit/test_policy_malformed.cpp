// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Every malformed policy is refused with the place and the reason: file, JSON pointer (or line and
// column), what was expected, and what to do about it.
#include "test_policy_malformed.h"
#include "catch.h"

using namespace adverb::policy;
using namespace malformed;

namespace {

std::string nested(size_t depth) {
  return root(R"("rules": )" + std::string(depth, '[') + std::string(depth, ']'));
}

const std::vector<Case> syntax = {
    {"an empty file", "", "", "empty", "{\"version\": 1}"},
    {"a file of blanks", " \n\t\r\n ", "", "empty", ""},
    {"a word", "nul", "1:4", "syntax error", ""},
    {"a lone brace", "{", "1:2", "end of input", ""},
    {"a missing value", R"({"version":})", "1:12", "unexpected '}'", ""},
    {"a missing brace", "{\"version\": 1", "1:14", "end of input", ""},
    {"a comma before a brace", R"({"version": 1,})", "1:15", "unexpected '}'", "remove the comma"},
    {"a comma before a bracket", R"({"version": 1, "rules": [{},]})", "1:29", "unexpected ']'",
     "remove the comma"},
    {"a missing comma", "{\"version\": 1\n  \"rules\": []}", "2:3", "unexpected string", ""},
    {"a missing colon", R"({"version" 1})", "1:12", "expected ':'", ""},
    {"single quotes", "{'version': 1}", "1:2", "invalid literal", "double quotes"},
    {"a line comment", "{\"version\": 1 // note\n}", "1:15", "invalid literal", "$comment"},
    {"a block comment", "{/* note */ \"version\": 1}", "1:2", "invalid literal", "$comment"},
    {"a hash comment", "# note\n{\"version\": 1}", "1:1", "invalid literal", "$comment"},
    {"an unquoted key", "{version: 1}", "1:2", "invalid literal", ""},
    {"an unclosed string", R"({"version)", "1:10", "missing closing quote", ""},
    {"a raw newline in a string", "{\"ver\nsion\": 1}", "1:6", "control character", ""},
    {"a bad escape", R"({"ver\qsion": 1})", "1:7", "after backslash", ""},
    {"a lone surrogate", R"({"ver\ud800": 1})", "1:2", "surrogate", ""},
    {"ill-formed UTF-8", "{\"\xff\": 1}", "1:3", "UTF-8", ""},
    {"overlong UTF-8", "{\"\xc0\xaf\": 1}", "1:3", "UTF-8", ""},
    {"a leading zero", R"({"version": 01})", "1:14", "unexpected number", ""},
    {"a hexadecimal number", R"({"version": 0x1})", "1:14", "invalid literal", ""},
    {"a number too large for anything", R"({"version": 1e999})", "1:17", "number overflow", ""},
    {"text behind the document", R"({"version": 1} x)", "1:16", "expected end of input", ""},
    {"two documents", "{\"version\": 1}\n{\"version\": 1}", "2:1", "expected end of input", ""},
    {"a NUL byte", std::string("{\"version\": 1\0}", 15), "1:14", "NUL", "UTF-8"},
    {"a NUL byte behind the document", std::string("{\"version\": 1}\0}", 16), "1:15", "NUL", ""},
    {"nesting without end", nested(100), anywhere, "levels deep", ""},
    {"nesting just too deep", nested(32), anywhere, "levels deep", ""},
};

const std::vector<Case> structure = {
    {"a list", "[]", "", "expected an object, got a list", ""},
    {"a number", "1", "", "expected an object, got 1", ""},
    {"null", "null", "", "expected an object, got null", ""},
    {"a string", R"("version")", "", "expected an object", ""},
    {"no version", "{}", "/version", "missing", "add \"version\": 1"},
    {"version 0", R"({"version": 0})", "/version", "expected 1, got 0", "version 1 only"},
    {"version 2", R"({"version": 2, "any": 3})", "/version", "expected 1, got 2", "version 1 only"},
    {"version 2 with other types", R"({"version": 2, "staging": 5, "rules": [{"register": 7}]})",
     "/version", "expected 1, got 2", "version 1 only"},
    {"version in quotes", R"({"version": "1"})", "/version", "expected 1, got \"1\"", ""},
    {"version true", R"({"version": true})", "/version", "expected 1, got true", ""},
    {"version 1.5", R"({"version": 1.5})", "/version", "expected 1, got 1.5", ""},
    {"version -1", R"({"version": -1})", "/version", "expected 1, got -1", ""},
    {"version twice", R"({"version": 1, "version": 1})", "/version", "given twice", "keep one"},
    {"a misspelt version", R"({"verion": 1})", "/verion", "unknown key", "\"version\"?"},
    {"a key in capitals", root(R"("RULES": [])"), "/RULES", "unknown key", "\"rules\"?"},
    {"rule for rules", root(R"("rule": [])"), "/rule", "unknown key", "\"rules\"?"},
    {"an unknown key", root(R"("zebra": 1)"), "/zebra", "unknown key", "\"pinned_budget\""},
    {"an empty key", root(R"("": 1)"), "/", "unknown key", ""},
    {"a key with slash and tilde", root(R"("a/b~c": 1)"), "/a~1b~0c", "unknown key", ""},
    {"a key with control characters", root(R"("\u001b[31m": 1)"), anywhere, "\\u001b", ""},
    {"a description that is a number", root(R"("description": 7)"), "/description",
     "expected a string, got 7", ""},
    {"a description that is a book", root(R"("description": ")" + std::string(201, 'x') + "\""),
     "/description", "longer than 200", ""},
    {"a comment that is a number", root(R"("$comment": 7)"), "/$comment",
     "expected a string or a list, got 7", ""},
    {"a comment with a number in it", root(R"("$comment": ["a", 7])"), "/$comment/1",
     "expected a string", ""},
    {"a comment twice", root(R"("$comment": "a", "$comment": "b")"), "/$comment", "given twice",
     ""},
    {"rules as an object", root(R"("rules": {})"), "/rules", "expected a list, got an object", ""},
    {"rules as null", root(R"("rules": null)"), "/rules", "expected a list, got null", ""},
    {"a rule as a string", rules(R"("none")"), "/rules/0", "expected an object, got \"none\"", ""},
    {"staging as a number", root(R"("staging": 64)"), "/staging", "expected a size", "\"64B\""},
    {"staging below its least", root(R"("staging": "4KiB")"), "/staging", "too small", "64KiB"},
    {"staging beyond its most", root(R"("staging": "1TiB")"), "/staging", "too large", "64GiB"},
    {"a negative budget", root(R"("pinned_budget": "-1MiB")"), "/pinned_budget", "expected a size",
     ""},
    {"a wait of seconds", root(R"("recall_wait": "2s")"), "/recall_wait", "expected a duration",
     ""},
    {"a wait of minutes", root(R"("recall_wait": "60001ms")"), "/recall_wait", "too large",
     "60000ms"},
    {"serve as a word", root(R"("serve": "yes")"), "/serve", "expected true or false, got \"yes\"",
     ""},
    {"serve as a number", root(R"("serve": 1)"), "/serve", "expected true or false, got 1", ""},
    {"a budget of nothing written", root(R"("pinned_budget": "")"), "/pinned_budget",
     "expected a size", ""},
};

const std::vector<Case> sizes = {
    {"kb", match(R"("min_size": "64kb")"), "/rules/0/match/min_size",
     "expected a size such as \"64KiB\", got \"64kb\"", "did you mean \"64KiB\"?"},
    {"KB", match(R"("min_size": "64KB")"), "/rules/0/match/min_size", "size", "\"64KiB\"?"},
    {"K", match(R"("max_size": "64K")"), "/rules/0/match/max_size", "size", "\"64KiB\"?"},
    {"a space", match(R"("max_size": "64 MiB")"), "/rules/0/match/max_size", "size", "\"64MiB\"?"},
    {"mib", match(R"("max_size": "2mib")"), "/rules/0/match/max_size", "size", "\"2MiB\"?"},
    {"no unit", match(R"("max_size": "64")"), "/rules/0/match/max_size", "size", "\"64B\"?"},
    {"a bare number", match(R"("max_size": 4096)"), "/rules/0/match/max_size", "got 4096",
     "\"4096B\"?"},
    {"a fraction", match(R"("max_size": "1.5MiB")"), "/rules/0/match/max_size", "size", ""},
    {"a leading zero", match(R"("max_size": "08KiB")"), "/rules/0/match/max_size", "size", ""},
    {"a plus sign", match(R"("max_size": "+8KiB")"), "/rules/0/match/max_size", "size", ""},
    {"a petabyte", match(R"("max_size": "1PiB")"), "/rules/0/match/max_size", "size", ""},
    {"more than 64 bits", match(R"("max_size": "99999999TiB")"), "/rules/0/match/max_size", "size",
     ""},
    {"more digits than 64 bits", match(R"("max_size": "99999999999999999999999B")"),
     "/rules/0/match/max_size", "size", ""},
    {"a list of sizes", match(R"("min_size": ["1KiB"])"), "/rules/0/match/min_size", "got a list",
     ""},
    {"copy_below true", rules(R"({"copy_below": true})"), "/rules/0/copy_below",
     "expected a size such as \"64KiB\", got true", ""},
    {"min above max", match(R"("min_size": "2MiB", "max_size": "1MiB")"), "/rules/0/match/min_size",
     "can never fire: min_size \"2MiB\" is above max_size \"1MiB\"", "swap"},
};

const std::vector<Case> matches = {
    {"match as a string", rules(R"({"match": "all", "register": "none"})"), "/rules/0/match",
     "expected an object, got \"all\"", ""},
    {"mach", rules(R"({"mach": {}, "register": "none"})"), "/rules/0/mach", "unknown key",
     "\"match\"?"},
    {"minsize", match(R"("minsize": "1KiB")"), "/rules/0/match/minsize", "unknown key",
     "\"min_size\"?"},
    {"programme", match(R"("programme": "x")"), "/rules/0/match/programme", "unknown key",
     "\"program\"?"},
    {"an action inside match", match(R"("register": "none")"), "/rules/0/match/register",
     "unknown key", ""},
    {"program as a number", match(R"("program": 5)"), "/rules/0/match/program",
     "expected a string or a list, got 5", ""},
    {"no programs", match(R"("program": [])"), "/rules/0/match/program", "the list is empty",
     "remove the key"},
    {"an empty program", match(R"("program": "")"), "/rules/0/match/program", "must not be empty",
     ""},
    {"a number among programs", match(R"("program": ["a", 5])"), "/rules/0/match/program/1",
     "expected a string, got 5", ""},
    {"an empty device", match(R"("device": ["mlx5_0", ""])"), "/rules/0/match/device/1",
     "must not be empty", ""},
    {"device null", match(R"("device": null)"), "/rules/0/match/device", "got null", ""},
    {"rc", qp_match(R"("qp_type": ["rc"])"), "/rules/0/match/qp_type/0",
     "expected \"RC\", \"UC\" or \"UD\", got \"rc\"", "did you mean \"RC\"?"},
    {"one type without a list", qp_match(R"("qp_type": "RC")"), "/rules/0/match/qp_type",
     "expected a list, got \"RC\"", ""},
    {"no types", qp_match(R"("qp_type": [])"), "/rules/0/match/qp_type", "the list is empty", ""},
    {"a type twice", qp_match(R"("qp_type": ["RC", "RC"])"), "/rules/0/match/qp_type/1",
     "given twice", "remove one"},
    {"a type that cannot be matched", qp_match(R"("qp_type": ["XRC_SEND"])"),
     "/rules/0/match/qp_type/0", "\"RC\", \"UC\" or \"UD\"", ""},
    {"remote-write", match(R"("access": ["remote-write"])"), "/rules/0/match/access/0",
     "got \"remote-write\"", "\"remote_write\"?"},
    {"local", match(R"("access": ["locl_only"])"), "/rules/0/match/access/0", "expected",
     "\"local_only\"?"},
    {"one right without a list", match(R"("access": "remote")"), "/rules/0/match/access",
     "expected a list", ""},
    {"no rights", match(R"("access": [])"), "/rules/0/match/access", "the list is empty", ""},
    {"a right twice", match(R"("access": ["remote", "remote"])"), "/rules/0/match/access/1",
     "given twice", ""},
    {"a right as a number", match(R"("access": [2])"), "/rules/0/match/access/0", "got 2", ""},
    {"peer on a region rule", match(R"("peer": "10.0.0.0/8")"), "/rules/0/match/peer",
     "\"peer\" does not apply to the action \"register\"", "before its peers are known"},
    {"qp_type on a region rule", match(R"("qp_type": ["RC"])"), "/rules/0/match/qp_type",
     "does not apply to the action \"register\"", "without \"qp_type\""},
    {"access on a peers rule", qp_match(R"("access": ["remote"])"), "/rules/0/match/access",
     "does not apply to the action \"peers\"", ""},
    {"min_size on an order rule", rules(R"({"match": {"min_size": "1KiB"}, "order": "relaxed"})"),
     "/rules/0/match/min_size", "does not apply to the action \"order\"", ""},
    {"max_size on a copy_below rule",
     rules(R"({"match": {"max_size": "1KiB"}, "copy_below": "1KiB"})"), "/rules/0/match/max_size",
     "does not apply to the action \"copy_below\"", ""},
    {"peer on a rule with both kinds of action",
     rules(R"({"match": {"peer": "::/0"}, "peers": "none", "register": "none"})"),
     "/rules/0/match/peer", "does not apply to the action \"register\"", ""},
    {"a peer's name", qp_match(R"("peer": "node17")"), "/rules/0/match/peer",
     "expected an address range", ""},
    {"a peer range with host bits", qp_match(R"("peer": "10.1.2.3/8")"), "/rules/0/match/peer",
     "expected an address range", "\"10.0.0.0/8\"?"},
    {"a prefix too long for IPv4", qp_match(R"("peer": "10.0.0.0/33")"), "/rules/0/match/peer",
     "expected an address range", ""},
    {"a prefix too long for IPv6", qp_match(R"("peer": ["::1/129"])"), "/rules/0/match/peer/0",
     "expected an address range", ""},
};

const std::vector<Case> actions = {
    {"no action", rules("{}"), "/rules/0", "sets no action", "\"register\", \"peers\""},
    {"no action with a match", rules(R"({"match": {"program": "x"}})"), "/rules/0",
     "sets no action", ""},
    {"regster", rules(R"({"regster": "none"})"), "/rules/0/regster", "unknown key",
     "\"register\"?"},
    {"pined", rules(R"({"register": "pined"})"), "/rules/0/register",
     "expected \"pinned\", \"none\", \"elastic\", \"odp\", \"np\" or \"auto\", got \"pined\"",
     "did you mean \"pinned\"?"},
    {"None", rules(R"({"register": "None"})"), "/rules/0/register", "got \"None\"", "\"none\"?"},
    {"register null", rules(R"({"register": null})"), "/rules/0/register", "got null", ""},
    {"register false", rules(R"({"register": false})"), "/rules/0/register", "got false", ""},
    {"peers automatic", rules(R"({"peers": "automatic"})"), "/rules/0/peers",
     "expected \"auto\" or \"none\"", ""},
    {"peers as a list", rules(R"({"peers": ["auto"]})"), "/rules/0/peers", "got a list", ""},
    {"order relax", rules(R"({"order": "relax"})"), "/rules/0/order",
     "expected \"strict\" or \"relaxed\"", "\"relaxed\"?"},
    {"a name without letters", rules(R"({"name": "", "peers": "none"})"), "/rules/0/name",
     "must not be empty", ""},
    {"a name too long", rules(R"({"peers": "none", "name": ")" + std::string(61, 'n') + R"("})"),
     "/rules/0/name", "longer than 60", ""},
    {"an action twice", rules(R"({"register": "none", "register": "pinned"})"), "/rules/0/register",
     "given twice", "keep one"},
    {"the second of two rules",
     rules(R"({"match": {"program": "x"}, "peers": "none"}, {"peers": "nope"})"), "/rules/1/peers",
     "got \"nope\"", "\"none\"?"},
    {"two rules of one name",
     rules(R"({"name": "a", "peers": "none"}, {"name": "a", "order": "strict"})"), "/rules/1/name",
     "already the name of /rules/0", "name of its own"},
};

const std::vector<Case> links = {
    {"link as a list", root(R"("link": [])"), "/link", "expected an object, got a list", ""},
    {"prot", link(R"("prot": 7771)"), "/link/prot", "unknown key", "\"port\"?"},
    {"port 0", link(R"("port": 0)"), "/link/port", "from 1 to 65535, got 0", ""},
    {"port 65536", link(R"("port": 65536)"), "/link/port", "from 1 to 65535", ""},
    {"port -1", link(R"("port": -1)"), "/link/port", "from 1 to 65535", ""},
    {"port 1.5", link(R"("port": 1.5)"), "/link/port", "expected an integer, got 1.5", ""},
    {"port in quotes", link(R"("port": "7771")"), "/link/port", "expected an integer", ""},
    {"a timeout as a number", link(R"("hello_timeout": 200)"), "/link/hello_timeout",
     "expected a duration such as \"200ms\", got 200", "\"200ms\"?"},
    {"a timeout in seconds", link(R"("hello_timeout": "1s")"), "/link/hello_timeout",
     "expected a duration", ""},
    {"a timeout too long", link(R"("hello_timeout": "10001ms")"), "/link/hello_timeout",
     "too large", "10000ms"},
    {"a timeout of nothing", link(R"("hello_timeout": "0ms")"), "/link/hello_timeout", "too small",
     "1ms"},
    {"allow as a string", link(R"("allow": "10.0.0.0/8")"), "/link/allow", "expected a list", ""},
    {"allow a name", link(R"("allow": ["::1", "localhost"])"), "/link/allow/1",
     "expected an address range such as \"10.0.0.0/8\", got \"localhost\"", ""},
    {"allow with host bits", link(R"("allow": ["192.168.1.7/16"])"), "/link/allow/0",
     "expected an address range", "\"192.168.0.0/16\"?"},
    {"allow an address cut short", link(R"("allow": ["10.0.0/8"])"), "/link/allow/0",
     "expected an address range", ""},
    {"allow twice", link(R"("allow": ["::1", "::1"])"), "/link/allow/1", "given twice", ""},
    {"a relative key file", link(R"("key_file": "key")"), "/link/key_file",
     "expected an absolute path", ""},
    {"a key file that is not there", link(R"("key_file": "/nonexistent/key")"), "/link/key_file",
     "cannot be read", ""},
    {"a key file that is a directory", link(R"("key_file": "/")"), "/link/key_file",
     "is a directory", "name a file"},
    {"peers as a list", link(R"("peers": [])"), "/link/peers", "expected an object", ""},
    {"a peer that is a name", link(R"("peers": {"node": "10.0.0.1"})"), "/link/peers/node",
     "expected a GID", ""},
    {"a peer's address that is a name", link(R"("peers": {"lid:7": "node"})"), "/link/peers/lid:7",
     "expected an IP address", ""},
    {"a peer's address that is a range", link(R"("peers": {"lid:7": "10.0.0.0/8"})"),
     "/link/peers/lid:7", "expected an IP address", ""},
    {"a LID of 0", link(R"("peers": {"lid:0": "10.0.0.1"})"), "/link/peers/lid:0", "expected a GID",
     ""},
    {"a LID too large", link(R"("peers": {"lid:65536": "10.0.0.1"})"), "/link/peers/lid:65536",
     "expected a GID", ""},
    {"a bare LID", link(R"("peers": {"7": "10.0.0.1"})"), "/link/peers/7", "expected a GID",
     "\"lid:7\"?"},
    {"a GUID cut short", link(R"("peers": {"guid:12": "10.0.0.1"})"), "/link/peers/guid:12",
     "expected a GID", ""},
    {"one peer in two spellings",
     link(R"("peers": {"10.0.0.1": "10.0.0.2", "::ffff:10.0.0.1": "10.0.0.3"})"),
     "/link/peers/::ffff:10.0.0.1", "given twice in different spellings", ""},
    {"log as a level", root(R"("log": "debug")"), "/log", "expected an object", ""},
    {"log level warning", root(R"("log": {"level": "warning"})"), "/log/level",
     "expected \"debug\"", "\"warn\"?"},
    {"log file relative", root(R"("log": {"file": "log"})"), "/log/file",
     "expected an absolute path", ""},
    {"log file with a newline", root(R"("log": {"file": "/a\nb"})"), "/log/file",
     "expected an absolute path", ""},
};

} // namespace

TEST_CASE("a syntax error names its line and column") {
  check(syntax);
}
TEST_CASE("a wrong key, version or type names its pointer") {
  check(structure);
}
TEST_CASE("a wrong size names its pointer and the size that may be meant") {
  check(sizes);
}
TEST_CASE("a wrong match names its pointer") {
  check(matches);
}
TEST_CASE("a wrong action names its pointer") {
  check(actions);
}
TEST_CASE("a wrong link or log setting names its pointer") {
  check(links);
}

TEST_CASE("the table holds more than a hundred malformed policies") {
  CHECK(syntax.size() + structure.size() + sizes.size() + matches.size() + actions.size() +
            links.size() >
        100);
}

TEST_CASE("all errors of a file are reported, in the order of the file") {
  const Loaded loaded = load_text(R"({"version": 1, "zebra": 0, "staging": "1KB",
    "rules": [{"register": "no"}, {"match": {"peer": "::/0"}, "register": "none"}, {}]})",
                                  "FILE");
  std::vector<std::string> pointers;
  for (const Error& error : loaded.errors)
    pointers.push_back(error.pointer);
  CHECK(pointers == std::vector<std::string>{"/zebra", "/staging", "/rules/0/register",
                                             "/rules/1/match/peer", "/rules/2"});
}

TEST_CASE("an error reads: file, pointer, reason, remedy") {
  const Loaded loaded = load_text(match(R"("min_size": "64kb")"), "/etc/adverb/policy.json");
  REQUIRE(loaded.errors.size() == 1);
  CHECK(loaded.errors[0].text() ==
        "/etc/adverb/policy.json: /rules/0/match/min_size: expected a size such as \"64KiB\", got "
        "\"64kb\"; did you mean \"64KiB\"?");
}

TEST_CASE("a message is one line without control characters, whatever the file holds") {
  for (const std::string& text : {root(R"("\u001b[31m\n": 1)"),
                                  rules(R"({"register": "\u0007\n"})"), std::string("{\"\x1b")}) {
    const Loaded loaded = load_text(text, "FILE\n");
    REQUIRE_FALSE(loaded.errors.empty());
    for (const Error& error : loaded.errors)
      for (char c : error.text())
        CHECK(static_cast<unsigned char>(c) >= 0x20);
  }
}
