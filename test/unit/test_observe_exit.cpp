// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Eight threads of a program call exit() at the same moment: the statistics are complete anyway.
#include "test_observe_child.h"

#include <barrier>
#include <cstdio>
#include <thread>

#include <nlohmann/json.hpp>

using namespace adverb::observe;
using observe_test::process;

int main() {
  const observe_test::Sandbox box;
  const std::string file = box.file("stats");
  setenv("ADVERB_STATS_FILE", file.c_str(), 1);
  int crashed = 0, incomplete = 0, pages_left = 0;
  for (int round = 0; round < 200; ++round) {
    observe_test::Child child([](observe_test::Child&) {
      process.page.start({"l", "p", "v", "d"});
      process.counters.count(Counter::kicks, 3);
      // Leaked: threads that are inside exit() cannot be joined.
      auto* together = new std::barrier<>(8);
      for (int i = 0; i < 7; ++i)
        std::thread([together] {
          together->arrive_and_wait();
          exit(0);
        }).detach();
      together->arrive_and_wait();
      return 0;
    });
    crashed += child.finish() != 0;
    const auto stats = nlohmann::json::parse(observe_test::slurp(file), nullptr, false);
    incomplete += stats.is_discarded() || stats["counters"]["kicks"] != 3;
    std::filesystem::remove(file);
    pages_left += box.files() != 0;
  }
  const bool good = crashed + incomplete + pages_left == 0;
  printf("1..1\n%s - exit() from eight threads at once leaves complete statistics",
         good ? "ok" : "not ok");
  if (!good)
    printf(": of 200 rounds %d crashed, %d incomplete, %d pages left", crashed, incomplete,
           pages_left);
  printf("\n");
  return 0;
}
