// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "catch.h"
#include "test_observe_child.h"

#include "observe/counters.h"
#include "observe/layout.h"
#include "observe/page.h"
#include "tools/commands.h"

#include <csignal>
#include <vector>

#include <nlohmann/json.hpp>

using namespace adverb::observe;
using nlohmann::json;
using observe_test::Child;
using observe_test::process;
using observe_test::Sandbox;
using observe_test::slurp;

namespace {

struct Ran {
  int status;
  std::string out, err;
};

Ran run_stat(const Sandbox& box, std::vector<std::string> words) {
  const std::string out = box.file("out");
  Child child([&](Child&) {
    const int fd = open(out.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    fflush(stdout); // what the test framework has not written yet
    dup2(fd, STDOUT_FILENO);
    words.insert(words.begin(), "stat");
    std::vector<char*> arguments;
    for (std::string& word : words)
      arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const int status = adverb::tools::cmd_stat(static_cast<int>(words.size()), arguments.data());
    fflush(stdout);
    return status;
  });
  const int status = child.finish();
  const std::string text = slurp(out);
  std::filesystem::remove(out);
  return {status, text, child.err};
}

int use_verbs(Child& self) {
  process.page.start({"/lib/libadverb.so", "profile unpinned", "rxe", "rxe0"});
  process.counters.count(Counter::regions_unpinned, 2);
  process.counters.count(Counter::region_bytes_unpinned, 3 << 20);
  process.page.label_rule(0, "big");
  self.tell();
  self.wait_parent();
  return 0;
}

} // namespace

TEST_CASE("stat shows what is not zero, grouped, with units and help", "[observe][stat]") {
  Sandbox box;
  Child child(use_verbs);
  REQUIRE(child.wait_told());
  const Ran ran = run_stat(box, {"-p", std::to_string(child.pid())});
  CHECK(ran.status == 0);
  CHECK(ran.err.empty());
  CHECK(ran.out.find("policy profile unpinned, provider rxe rxe0") != std::string::npos);
  CHECK(ran.out.find("\n  Regions\n") != std::string::npos);
  CHECK(ran.out.find("2 regions  regions registered without pinning") != std::string::npos);
  CHECK(ran.out.find("3.0 MiB") != std::string::npos);
  CHECK(ran.out.find("never decided anything") != std::string::npos);
  CHECK(ran.out.find("kicks") == std::string::npos);
  CHECK(run_stat(box, {"-a", "-p", std::to_string(child.pid())}).out.find("kicks") !=
        std::string::npos);
  child.let_go();
}

TEST_CASE("stat --json is the process for one, an object that lists them for all",
          "[observe][stat]") {
  Sandbox box;
  Child child(use_verbs);
  REQUIRE(child.wait_told());
  const Ran one = run_stat(box, {"--json", "-p", std::to_string(child.pid())});
  CHECK(json::parse(one.out)["counters"]["regions_unpinned"] == 2);
  bool listed = false;
  const json all = json::parse(run_stat(box, {"--json"}).out);
  for (const json& process : all["processes"])
    listed = listed || process["pid"] == child.pid();
  CHECK(listed);
  child.let_go();
}

TEST_CASE("stat --peers is a table, in the place of the counters", "[observe][stat]") {
  Sandbox box;
  Child child([](Child& self) {
    PeerEntry one{};
    strcpy(one.address, "10.0.0.2");
    one.process[0] = 0xab;
    one.role = PeerRole::initiator;
    one.level = PeerLevel::host;
    one.processes = 1;
    one[PeerNumber::links] = 1;
    one[PeerNumber::auth_failures] = 3;
    one[PeerNumber::malformed_messages] = 2;
    one[PeerNumber::bound_channels] = 4;
    process.peers.write(0, one);
    PeerEntry others{};
    strcpy(others.address, "others");
    others.processes = 12;
    process.peers.write(kOthers, others);
    return use_verbs(self);
  });
  REQUIRE(child.wait_told());
  const Ran ran = run_stat(box, {"--peers", "-p", std::to_string(child.pid())});
  CHECK(ran.status == 0);
  CHECK(ran.out.find("  peer      process     role       level  links") != std::string::npos);
  CHECK(ran.out.find("10.0.0.2  ab000000    initiator  host") != std::string::npos);
  CHECK(ran.out.find("3 auth, 2 malformed") != std::string::npos);
  CHECK(ran.out.find("4 channels") != std::string::npos);
  CHECK(ran.out.find("others    12 of them") != std::string::npos);
  CHECK(ran.out.find("regions_unpinned") == std::string::npos);
  child.let_go();
  child.finish();
  Child alone(use_verbs);
  REQUIRE(alone.wait_told());
  CHECK(run_stat(box, {"--peers", "-p", std::to_string(alone.pid())}).out.find("no peer has") !=
        std::string::npos);
  alone.let_go();
}

TEST_CASE("stat says why a process shows no numbers", "[observe][stat]") {
  Sandbox box;
  const Ran gone = run_stat(box, {"-p", "4194303"});
  CHECK(gone.status == adverb::tools::status_failed);
  CHECK(gone.err.find("there is no such process") != std::string::npos);
  const Ran plain = run_stat(box, {"-p", std::to_string(getpid())});
  CHECK(plain.status == adverb::tools::status_failed);
  CHECK(plain.err.find("without libadverb.so") != std::string::npos);
}

TEST_CASE("stat of a page of another layout fails and names both versions", "[observe][stat]") {
  Sandbox box;
  Child child([](Child& self) {
    process.page.start({"l", "p", "v", "d"});
    self.tell();
    self.wait_parent();
    return 0;
  });
  REQUIRE(child.wait_told());
  for (const auto& entry : std::filesystem::directory_iterator(box.path)) {
    const uint64_t other = kLayout ^ 1;
    const int fd = open(entry.path().c_str(), O_WRONLY);
    REQUIRE(pwrite(fd, &other, sizeof other, offsetof(PageHeader, layout)) == sizeof other);
    close(fd);
  }
  const Ran ran = run_stat(box, {"-p", std::to_string(child.pid())});
  CHECK(ran.status == adverb::tools::status_failed);
  CHECK(ran.err.find("use the `adverb` that came with that library") != std::string::npos);
  child.let_go();
}

TEST_CASE("stat shows a killed process once asked for, then clears it away", "[observe][stat]") {
  Sandbox box;
  Child child(use_verbs);
  REQUIRE(child.wait_told());
  const std::string pid = std::to_string(child.pid());
  kill(child.pid(), SIGKILL);
  child.finish();
  const Ran ended = run_stat(box, {"-p", pid});
  CHECK(ended.status == 0);
  CHECK(ended.out.find("ended without a clean exit") != std::string::npos);
  CHECK(box.files() == 1);
  run_stat(box, {});
  CHECK(box.files() == 0);
}

TEST_CASE("stat --watch shows rates and ends with the process it watches", "[observe][stat]") {
  Sandbox box;
  Child child([](Child& self) {
    process.page.start({"l", "p", "v", "d"});
    self.tell();
    alarm(1); // the watcher sees it once alive and then gone
    for (;;)
      process.counters.count(Counter::kicks);
    return 0;
  });
  REQUIRE(child.wait_told());
  const Ran ran = run_stat(box, {"-p", std::to_string(child.pid()), "--watch", "0.1"});
  CHECK(ran.status == 0);
  CHECK(ran.out.find("/s") != std::string::npos);
}

TEST_CASE("stat refuses what it does not understand", "[observe][stat]") {
  Sandbox box;
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{{"-p", "x"},
                                                                                     {"-p", "0"},
                                                                                     {"-p", "-1"},
                                                                                     {"--watch=0"},
                                                                                     {"--watch=x"},
                                                                                     {"--nope"},
                                                                                     {"12"}})
    CHECK(run_stat(box, words).status == adverb::tools::status_usage);
}
