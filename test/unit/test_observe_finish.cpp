// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "catch.h"
#include "test_observe_child.h"

#include "observe/counters.h"
#include "observe/layout.h"
#include "observe/page.h"
#include "observe/snapshot.h"

#include <cstdlib>

#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

using namespace adverb::observe;
using nlohmann::json;
using observe_test::Child;
using observe_test::process;
using observe_test::Sandbox;
using observe_test::slurp;

TEST_CASE("the statistics file names every counter and carries its value", "[observe]") {
  Sandbox box;
  setenv("ADVERB_STATS_FILE", box.file("stats.%p.json").c_str(), 1);
  Child child([](Child&) {
    process.page.start({"/lib/libadverb.so", "built-in default", "rxe", "rxe0"});
    process.counters.count(Counter::staging_bytes, uint64_t{1} << 60);
    process.counters.gauge_add(Gauge::recv_forced_bytes, -1);
    process.page.label_rule(0, "quoted \" and \xff not UTF-8");
    return 0;
  });
  const pid_t pid = child.pid();
  REQUIRE(child.finish() == 0);
  const json stats = json::parse(slurp(box.file("stats." + std::to_string(pid) + ".json")));
  size_t counters = 0, gauges = 0;
  for (const Row& row : kRows) {
    counters += row.kind == RowKind::counter && stats["counters"].contains(row.name);
    gauges += row.kind == RowKind::gauge && stats["gauges"].contains(row.name);
  }
  CHECK(counters == kCounters);
  CHECK(gauges == kGauges);
  CHECK(stats["counters"]["staging_bytes"] == uint64_t{1} << 60);
  CHECK(stats["gauges"]["recv_forced_bytes"] == -1);
  CHECK(stats["pid"] == pid);
  CHECK(stats["adverb"] == ADVERB_VERSION);
  CHECK(stats["devices"] == json::array({"rxe0"}));
  CHECK(stats["rules"].size() == 1);
  CHECK(box.files() == 1); // no temporary left, no page left
}

TEST_CASE("a program that used no verbs writes no statistics", "[observe]") {
  Sandbox box;
  setenv("ADVERB_STATS_FILE", box.file("stats").c_str(), 1);
  Child child([](Child&) {
    process.counters.count(Counter::hooks_calls);
    return 0;
  });
  CHECK(child.finish() == 0);
  CHECK(box.files() == 0);
}

TEST_CASE("counts of the program's own exit handlers are in the statistics", "[observe]") {
  Sandbox box;
  setenv("ADVERB_STATS_FILE", box.file("stats").c_str(), 1);
  Child child([](Child&) {
    atexit([] {
      process.counters.count(Counter::kicks, 7);
    }); // registered before process.page.start()
    process.page.start({"l", "p", "v", "d"});
    return 0;
  });
  REQUIRE(child.finish() == 0);
  CHECK(json::parse(slurp(box.file("stats")))["counters"]["kicks"] == 7);
}

TEST_CASE("quick_exit leaves statistics too", "[observe]") {
  Sandbox box;
  setenv("ADVERB_STATS_FILE", box.file("stats").c_str(), 1);
  Child child([](Child&) -> int {
    process.page.start({"l", "p", "v", "d"});
    quick_exit(0);
  });
  REQUIRE(child.finish() == 0);
  CHECK(json::parse(slurp(box.file("stats")))["adverb"] == ADVERB_VERSION);
}

TEST_CASE("what others have put in the place of a statistics file is not written to", "[observe]") {
  Sandbox box;
  setenv("ADVERB_STATS_FILE", box.file("stats").c_str(), 1);
  const std::string theirs = box.file("theirs");
  for (const bool fifo : {true, false}) {
    Child child([&](Child&) {
      alarm(60); // a FIFO must not hold it up
      const std::string temporary = box.file("stats.tmp." + std::to_string(getpid()));
      if (fifo ? mkfifo(temporary.c_str(), 0666) != 0
               : symlink(theirs.c_str(), temporary.c_str()) != 0)
        return 1;
      process.page.start({"l", "p", "v", "d"});
      return 0;
    });
    REQUIRE(child.finish() == 0);
    CHECK(json::parse(slurp(box.file("stats")))["adverb"] == ADVERB_VERSION);
    CHECK(access(theirs.c_str(), F_OK) != 0);
    REQUIRE(unlink(box.file("stats").c_str()) == 0);
  }
}

TEST_CASE("a statistics file that cannot be written is said, with the reason", "[observe]") {
  Sandbox box;
  setenv("ADVERB_STATS_FILE", box.file("absent/stats").c_str(), 1);
  Child child([](Child&) {
    process.page.start({"l", "p", "v", "d"});
    return 0;
  });
  CHECK(child.finish() == 0);
  CHECK(child.err.find("cannot write the statistics") != std::string::npos);
  CHECK(child.err.find("No such file") != std::string::npos);
}
