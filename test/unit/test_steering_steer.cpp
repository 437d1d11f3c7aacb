// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// gate: yes
// Who carries what, by rules and by a measured rate, with a device that is slow to reach cold pages
// and a clock that stands still but for the requests.
#include "catch.h"
#include "steering/steer.h"

#include <functional>
#include <random>

using adverb::Clock;
using adverb::policy::SteerRule;
using adverb::steering::Steer;
using Choice = adverb::steering::Steer::Choice;
using By = adverb::policy::Steer;

namespace {

struct Stopwatch final : Clock {
  std::chrono::nanoseconds time{1};
  uint64_t looks = 0;
  std::chrono::nanoseconds now() noexcept override {
    ++looks;
    return time;
  }
};

std::vector<SteerRule> automatic() {
  SteerRule rule;
  rule.steer = By::automatic;
  return {rule};
}

// A program of WRITEs of 64 bytes that always has as many outstanding as it may. The device keeps
// the translations of the pages below `cached`.
struct Program {
  Stopwatch clock;
  Steer steer{automatic(), clock, 16};
  double near_ns = 1000; // by the device, the page's translation is there
  double far_ns = 3000;  // it is not
  double cpu_ns = 1500;
  uint64_t cached = 256; // pages
  std::function<uint64_t()> page;
  std::mt19937_64 random{1};
  std::function<double(uint64_t)> noise = [](uint64_t) { return 1.0; }; // by request
  uint64_t by_cpu = 0;
  double spent = 0;

  void run(uint64_t requests) {
    by_cpu = 0;
    spent = 0;
    for (uint64_t i = 0; i < requests; ++i) {
      const uint64_t at = page() << 12;
      double cost = (at >> 12) < cached ? near_ns : far_ns;
      if (!steer.by_device(IBV_WR_RDMA_WRITE, at, 64)) {
        steer.count_unloaded(at, 64);
        cost = cpu_ns;
        ++by_cpu;
      }
      cost *= noise(i);
      spent += cost;
      clock.time += std::chrono::nanoseconds(static_cast<int64_t>(cost));
    }
  }
  double mean() const { return spent / 20000; }
};

} // namespace

TEST_CASE("requests to a set that the device's cache holds stay with the device") {
  Program program;
  program.page = [&] { return program.random() % 200; };
  program.run(20000);
  program.run(20000);
  CHECK(program.steer.choice(64) == Choice::device);
  CHECK(program.mean() < 1.05 * program.near_ns);
}

TEST_CASE("to try what is much slower takes little time") {
  Program program;
  program.cpu_ns = 8000;
  program.page = [&] { return program.random() % 200; };
  program.run(200000);
  program.run(400000);
  CHECK(program.by_cpu != 0);
  CHECK(program.spent / 400000 < 1.02 * program.near_ns);
}

TEST_CASE("requests to cold pages go to the CPU") {
  Program program;
  program.page = [&] { return 1000 + program.random() % 100000; };
  program.run(20000);
  program.run(20000);
  CHECK(program.steer.choice(64) != Choice::device);
  CHECK(program.mean() < 1.05 * program.cpu_ns);
}

TEST_CASE("of a mixed set hot pages stay with the device and cold ones do not") {
  Program program;
  program.page = [&] {
    return program.random() % 2 == 0 ? program.random() % 32 : 1000 + program.random() % 100000;
  };
  program.run(20000);
  program.run(20000);
  CHECK(program.steer.choice(64) == Choice::split);
  CHECK(program.mean() < 1.07 * (program.near_ns + program.cpu_ns) / 2);
  CHECK(program.mean() < program.cpu_ns);
}

TEST_CASE("a change of the set, and of the owner, is followed within 5,000 requests") {
  Program program;
  bool hot = true;
  program.page = [&] { return hot ? program.random() % 200 : 1000 + program.random() % 100000; };
  program.run(30000);
  REQUIRE(program.steer.choice(64) == Choice::device);
  hot = false;
  program.run(5000);
  program.run(5000);
  CHECK(program.by_cpu > 4000);
  program.run(20000);
  program.cpu_ns = 20000; // the owner has no processor to spare
  program.run(5000);
  program.run(5000);
  CHECK(program.by_cpu < 1500); // probes
  program.run(20000);
  program.cpu_ns = 1500;
  program.run(40000); // nothing tells but a probe
  CHECK(program.steer.choice(64) != Choice::device);
}

TEST_CASE("where no choice is better the device carries all but probes") {
  Program program;
  program.near_ns = program.far_ns = program.cpu_ns = 1000;
  program.page = [&] { return program.random() % 1000; };
  program.run(20000);
  program.run(20000);
  CHECK(program.steer.choice(64) == Choice::device);
  CHECK(program.steer.switches() == 0);
  CHECK(program.by_cpu < 20000 / 25);
}

TEST_CASE("a host whose speed wavers has few probes and no choice that is worse") {
  Program program;
  program.cpu_ns = 2000;
  program.page = [&] { return program.random() % 200; };
  double now = 1;
  program.noise = [&](uint64_t i) {
    if (i % 128 == 0) // one epoch in five is slow
      now = program.random() % 5 == 0 ? 1.7 : 1;
    return now;
  };
  program.run(60000);
  uint64_t by_cpu = 0;
  for (int i = 0; i < 10; ++i) {
    program.run(20000);
    by_cpu += program.by_cpu;
  }
  CHECK(by_cpu < 200000 / 12);
}

TEST_CASE("the clock is read once an epoch") {
  Program program;
  program.page = [&] { return program.random() % 1000; };
  program.run(12800);
  CHECK(program.clock.looks == 101);
}

TEST_CASE("the first rule that matches says who carries") {
  Stopwatch clock;
  SteerRule small;
  small.requests.max_length = 100;
  small.steer = By::unload;
  SteerRule low;
  low.requests.from = 0x1000;
  low.requests.to = 0x1fff;
  low.steer = By::offload;
  SteerRule rest;
  rest.steer = By::unload;
  Steer steer({small, low, rest}, clock, 16);
  CHECK_FALSE(steer.by_device(IBV_WR_RDMA_WRITE, 0x1000, 100));
  CHECK(steer.by_device(IBV_WR_RDMA_WRITE, 0x1000, 101));
  CHECK_FALSE(steer.by_device(IBV_WR_RDMA_READ, 0x2000, 101));
  CHECK(steer.by_device(IBV_WR_RDMA_WRITE, 0x2000, 0));
  CHECK(steer.by_device(IBV_WR_ATOMIC_FETCH_AND_ADD, 0x2000, 8));
  CHECK_FALSE(steer.by_device(IBV_WR_RDMA_WRITE_WITH_IMM, 0x2000, 8));
  CHECK(Steer({}, clock, 16).by_device(IBV_WR_RDMA_WRITE, 0, 8));
}

TEST_CASE("a peer whose CPU is short is spared, and longer each time that it says so again") {
  Program program;
  program.page = [&] { return 1000 + program.random() % 100000; };
  program.run(20000);
  REQUIRE(program.steer.choice(64) == Choice::cpu);
  using std::chrono::milliseconds;
  milliseconds pause{200};
  for (int times = 0; times < 8; ++times) {
    CHECK(program.steer.spare_cpu());
    CHECK_FALSE(program.steer.spare_cpu()); // what was under way says so, too
    CHECK(program.steer.choice(64) == Choice::device);
    const auto until = program.clock.time + pause;
    while (program.clock.time + milliseconds{2} < until) {
      program.run(500);
      REQUIRE(program.by_cpu == 0);
    }
    uint64_t tried = 0; // it is, when the pause is over
    for (int looks = 0; looks < 100 && tried == 0; ++looks) {
      program.run(500);
      tried = program.by_cpu;
    }
    CHECK(tried != 0);
    pause = std::min(2 * pause, milliseconds{12'800});
  }
  // It has not said so for as long as that: from the beginning.
  program.clock.time += 2 * pause;
  program.run(20000);
  REQUIRE(program.steer.choice(64) == Choice::cpu);
  CHECK(program.steer.spare_cpu());
  program.clock.time += milliseconds{201};
  program.run(20000);
  CHECK(program.by_cpu != 0);
}

TEST_CASE("what a rule gives to the CPU goes there however short it is") {
  SteerRule rule;
  rule.steer = By::unload;
  Stopwatch clock;
  Steer steer({rule}, clock, 16);
  CHECK(steer.spare_cpu());
  CHECK_FALSE(steer.by_device(IBV_WR_RDMA_WRITE, 0, 64));
}
