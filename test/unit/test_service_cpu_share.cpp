// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// gate: yes
// When a thread is said to be short of the processor, by the times that the kernel counts.
#include "catch.h"
#include "service/cpu_share.h"

#include <fstream>

using adverb::service::CpuShare;
using namespace std::chrono_literals;

namespace {

struct Thread {
  CpuShare share;
  std::chrono::nanoseconds now = 1s;
  CpuShare::Times times{5s, 5s};

  bool goes_on(std::chrono::nanoseconds ran, std::chrono::nanoseconds waited,
               std::chrono::nanoseconds after = 10ms) {
    now += after;
    times.ran += ran;
    times.waited += waited;
    share.judge(now, times);
    return share.is_short();
  }
};

} // namespace

TEST_CASE("a thread is short when it has waited for more than half of what it wanted") {
  Thread thread;
  CHECK_FALSE(thread.goes_on(1ms, 9ms)); // the first look knows nothing of before
  CHECK_FALSE(thread.goes_on(10ms, 0ms));
  CHECK_FALSE(thread.goes_on(5ms, 5ms));
  CHECK(thread.goes_on(4ms, 6ms));
  CHECK(thread.goes_on(6ms, 4ms)); // not quickly back
  CHECK_FALSE(thread.goes_on(7ms, 3ms));
  CHECK_FALSE(thread.goes_on(6ms, 4ms));
}

TEST_CASE("a thread that hardly wanted any is not short") {
  Thread thread;
  thread.goes_on(0ms, 0ms);
  REQUIRE(thread.goes_on(1ms, 9ms));
  CHECK_FALSE(thread.goes_on(100us, 800us));
  REQUIRE(thread.goes_on(1ms, 9ms));
  CHECK_FALSE(thread.goes_on(1ms, 90ms, 300ms)); // nobody has asked for a while
}

TEST_CASE("the kernel of this machine counts both times") {
  std::ifstream file("/proc/thread-self/schedstat");
  int64_t ran = -1;
  int64_t waited = -1;
  file >> ran >> waited;
  CHECK(ran > 0);
  CHECK(waited >= 0);
}
