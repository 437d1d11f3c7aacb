// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "test_world.h"
#include "catch.h"

#include "observe/directory.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <unistd.h>

using namespace adverb;
using observe::Counter;
using observe::Gauge;
using world_test::Bench;
using world_test::CountingEntropy;
using world_test::Lines;
using world_test::ManualClock;
using world_test::ManualService;

TEST_CASE("two Worlds of one process count and log apart", "[world]") {
  Bench one;
  Bench two;
  one.world.counters.count(Counter::kicks, 3);
  one.world.counters.gauge_raise(Gauge::pinned_bytes, 7);
  two.world.log.warn("{} speaks", "two");
  two.world.counters.count_rule(1);
  CHECK(one.world.counters.value(Counter::kicks) == 3);
  CHECK(one.world.counters.value(Gauge::pinned_bytes) == 7);
  CHECK(two.world.counters.value(Counter::kicks) == 0);
  CHECK(two.world.counters.rule_hits(1) == 1);
  CHECK(one.world.counters.rule_hits(1) == 0);
  CHECK(one.lines.said.empty());
  CHECK(two.lines.said == std::vector<std::string>{"warn: two speaks"});
  // What one has said the other has not.
  CHECK(one.world.log.once("odp"));
  CHECK_FALSE(one.world.log.once("odp"));
  CHECK(two.world.log.once("odp"));
}

TEST_CASE("time, chance and tasks of a World are what the test makes them", "[world]") {
  Bench bench;
  CHECK(bench.world.log.every("naks", 10));
  CHECK_FALSE(bench.world.log.every("naks", 10));
  int ran = 0;
  bench.world.service.run([&] { ++ran; });
  const auto late = bench.world.service.after(std::chrono::seconds(20), [&] { ran += 100; });
  bench.world.service.after(std::chrono::seconds(5), [&] { ran += 10; });
  bench.service.pass(std::chrono::seconds(10));
  CHECK(ran == 11);
  CHECK(bench.world.log.every("naks", 10)); // ten seconds have gone by
  bench.world.service.cancel(late);
  bench.service.pass(std::chrono::seconds(60));
  CHECK(ran == 11);
  uint64_t first = 0;
  uint64_t second = 0;
  bench.world.entropy.fill(&first, sizeof first);
  bench.world.entropy.fill(&second, sizeof second);
  CHECK(first != second);
}

TEST_CASE("the real library and the policy can be a test's own", "[world]") {
  provider::Real table;
  table.ibv_dealloc_pd = [](ibv_pd*) { return 42; };
  const auto loaded = policy::load_profile("unpinned");
  REQUIRE(loaded);
  Bench bench(&table, loaded.policy.get());
  CHECK(bench.world.provider.real().ibv_dealloc_pd(nullptr) == 42);
  CHECK(bench.world.provider.real().ibv_reg_mr == nullptr);
  CHECK(&bench.world.policy() == loaded.policy.get());
}

TEST_CASE("a World may keep its counts in no file", "[world]") {
  ManualClock clock;
  CountingEntropy entropy;
  ManualService service{clock};
  Lines lines;
  World world({.clock = clock,
               .entropy = entropy,
               .service = service,
               .log_sink = &lines,
               .shared_page = false});
  world.page.start({"library", "policy", "provider", "device"});
  world.counters.count(Counter::kicks);
  CHECK(world.page.started());
  CHECK(world.counters.value(Counter::kicks) == 1);
  CHECK(std::string(world.page.header().library) == "library");
  // Of this process and still mapped, if there is one: it would be in the list.
  for (const auto& page : observe::find_pages(observe::own_directories(), geteuid()))
    CHECK(page.name.pid != getpid());
}

TEST_CASE("making a World opens nothing and takes microseconds", "[world]") {
  Bench warm; // pages of the allocator
  constexpr int rounds = 200;
  // Of this thread alone: how long it is kept from a processor says nothing.
  const auto processor_time = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  const auto start = processor_time();
  for (int i = 0; i < rounds; ++i) {
    const auto bench = std::make_unique<Bench>();
    CHECK_FALSE(bench->world.page.started());
  }
  const auto each = (processor_time() - start) / rounds;
  // Some 5 µs; the bar leaves room for valgrind and sanitizers.
  CHECK(each < std::chrono::milliseconds(2));
}

TEST_CASE("a part is made once, when it is first asked for, and a test may bring its own",
          "[world]") {
  Part<std::string> part;
  CHECK(part.made() == nullptr);
  std::atomic<int> makers = 0;
  const auto make = [&] {
    ++makers;
    return std::make_shared<std::string>("made");
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] { (void)part.get(make); });
  for (auto& thread : threads)
    thread.join();
  CHECK(makers == 1);
  Part<std::string> other;
  other.put(std::make_shared<std::string>("brought"));
  CHECK(other.get(make) == "brought");
  CHECK(makers == 1);
}

TEST_CASE("what is each thread's own is not another's", "[world]") {
  struct Mine;
  ThreadLocal<int, Mine>::get() = 5;
  int seen = -1;
  std::thread([&] { seen = ThreadLocal<int, Mine>::get(); }).join();
  CHECK(seen == 0);
  CHECK(ThreadLocal<int, Mine>::get() == 5);
}
