// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// gate: yes
// The policy in force when its file changes: what is taken, what is refused, what has to wait.
#include "catch.h"

#include "policy/current.h"
#include "policy/rule.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sys/stat.h>

using namespace adverb::policy;
using What = Current::Reread::What;
namespace fs = std::filesystem;

namespace {

struct Counts final : Hits {
  void hit(size_t slot) noexcept override { ++of[slot]; }
  std::map<size_t, int> of;
};

struct Process {
  Process() {
    char name[] = "/tmp/adverb-current-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    folder = name;
    file = folder + "/policy.json";
    setenv("ADVERB_POLICY", file.c_str(), 1);
  }
  ~Process() {
    unsetenv("ADVERB_POLICY");
    fs::remove_all(folder);
  }
  void write(const std::string& text) const {
    std::ofstream(file) << text;
    REQUIRE(chmod(file.c_str(), 0644) == 0);
  }
  void rules(const std::string& rules, const std::string& settings = "") const {
    write(R"({"version": 1, )" + settings + R"("rules": [)" + rules + "]}");
  }
  std::string folder;
  std::string file;
  Counts counts;
  Current current{&counts};
};

constexpr const char* pinned = R"({"name": "regions", "register": "pinned"})";
constexpr const char* unpinned = R"({"name": "regions", "register": "none"})";
const RegionQuery region{"lo0", 4096, 0};

} // namespace

TEST_CASE("a file that has changed is taken, and one that has not is not") {
  Process p;
  p.rules(pinned);
  CHECK_FALSE(p.current.get().region(region).unpins);
  CHECK(p.current.file() == p.file);
  CHECK(p.current.reread().what == What::same);
  p.rules(unpinned);
  CHECK(p.current.reread().what == What::taken);
  CHECK(p.current.get().region(region).unpins);
  CHECK(p.current.reread().what == What::same);
  const Policy* const second = &p.current.get();
  p.rules(pinned);
  CHECK(p.current.reread().what == What::taken);
  CHECK_FALSE(p.current.get().region(region).unpins);
  p.rules(unpinned); // one that was in force before is kept
  CHECK(p.current.reread().what == What::taken);
  CHECK(&p.current.get() == second);
}

TEST_CASE("a file with errors, or none, changes nothing and says why") {
  Process p;
  p.rules(unpinned);
  const Policy* const before = &p.current.get();
  SECTION("no JSON") {
    p.write("{");
  }
  SECTION("an unknown key") {
    p.rules(R"({"name": "a", "regster": "none"})");
  }
  SECTION("that others may write") {
    p.rules(pinned);
    REQUIRE(chmod(p.file.c_str(), 0666) == 0);
  }
  SECTION("gone") {
    fs::remove(p.file);
  }
  const auto result = p.current.reread();
  CHECK(result.what == What::refused);
  REQUIRE_FALSE(result.errors.empty());
  CHECK(result.errors[0].text().starts_with(p.file));
  CHECK(&p.current.get() == before);
  p.rules(pinned); // the next one is
  CHECK(p.current.reread().what == What::taken);
}

TEST_CASE("hits are counted by the name of the rule, wherever it stands") {
  Process p;
  p.rules(std::string(pinned) + R"(, {"name": "peers", "peers": "auto"})");
  (void)p.current.get().region(region);
  (void)p.current.get().ask<&Rule::peers>({"lo0", 2});
  p.rules(
      std::string(R"({"name": "more", "order": "relaxed"}, {"name": "peers", "peers": "none"}, )") +
      unpinned);
  REQUIRE(p.current.reread().what == What::taken);
  (void)p.current.get().region(region);
  (void)p.current.get().ask<&Rule::order>({"lo0", 2});
  CHECK(p.current.slots() == std::vector<std::string>{"regions", "peers", "more"});
  CHECK(p.counts.of == std::map<size_t, int>{{0, 2}, {1, 1}, {2, 1}});
  const auto old = p.current.get().steering({"lo0", 2});
  CHECK(old.empty());
}

TEST_CASE("a rule of a policy that another has replaced counts nothing") {
  Process p;
  p.rules(R"({"name": "short", "steer": "unload"})");
  const auto rules = p.current.get().steering({"lo0", 2});
  REQUIRE(rules.size() == 1);
  p.current.get().steered_by(rules[0]);
  p.rules(R"({"name": "regions", "register": "pinned"})");
  REQUIRE(p.current.reread().what == What::taken);
  p.current.get().steered_by(rules[0]);
  CHECK(p.counts.of == std::map<size_t, int>{{0, 1}});
}

TEST_CASE("settings of a running process stay, and those that differ are named") {
  Process p;
  p.rules(pinned, R"("link": {"port": 7000}, "staging": "1MiB", "recall_wait": "20ms", )");
  CHECK(p.current.get().link().port == 7000);
  p.rules(pinned,
          R"("link": {"port": 7001}, "staging": "2MiB", "recall_wait": "30ms", "serve": false, )");
  auto result = p.current.reread();
  CHECK(result.what == What::taken);
  CHECK(result.later == std::vector<std::string>{"link", "staging"});
  CHECK(p.current.get().link().port == 7000);
  CHECK(p.current.get().staging() == 1 << 20);
  CHECK(p.current.get().recall_wait().count() == 30);
  CHECK_FALSE(p.current.get().serves());
  p.rules(unpinned, R"("staging": "1MiB", "link": {"port": 7000}, )"); // as it began
  result = p.current.reread();
  CHECK(result.later.empty());
}

TEST_CASE("a profile has no file that could change") {
  Process p;
  setenv("ADVERB_POLICY", "unpinned", 1);
  CHECK(p.current.get().region(region).unpins);
  CHECK(p.current.file().empty());
  CHECK(p.current.reread().what == What::same);
}
