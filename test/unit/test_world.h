// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A World of a test's own: no thread, no file, no device; time goes on when the test says so.
#pragma once

#include "memory/monitor.h"
#include "service/jobs.h"
#include "world/world.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace world_test {

struct ManualClock final : adverb::Clock {
  std::chrono::nanoseconds now() noexcept override { return time; }
  std::chrono::nanoseconds time{1};
};

/// Counts up: two draws differ, and a run repeats itself.
struct CountingEntropy final : adverb::Entropy {
  void fill(void* to, size_t bytes) noexcept override {
    for (size_t i = 0; i < bytes; ++i)
      static_cast<unsigned char*>(to)[i] = static_cast<unsigned char>(next >> 8 * (i % 8));
    ++next;
  }
  uint64_t next = 1;
};

/// Tasks, jobs and timers wait until the test runs them. One thread.
struct ManualService final : adverb::service::Service {
  explicit ManualService(ManualClock& clock) : clock(clock) {}

  void watch(int fd, uint32_t, std::function<void(uint32_t)> ready) override {
    watched[fd] = std::move(ready);
  }
  void change(int, uint32_t) override {}
  void unwatch(int fd) override { watched.erase(fd); }
  void run(std::function<void()> task) override { tasks.push_back(std::move(task)); }
  uint64_t after(std::chrono::nanoseconds delay, std::function<void()> task) override {
    timers.emplace(clock.time + delay, std::pair{++last_timer, std::move(task)});
    return last_timer;
  }
  void cancel(uint64_t timer) override {
    std::erase_if(timers, [&](const auto& t) { return t.second.first == timer; });
  }
  void post(adverb::service::Job& job) override { jobs.push(job); }
  void poll(adverb::service::Poller& poller) override {
    tasks.emplace_back([&poller] {
      while (poller.look(false)) {
      }
    });
  }
  bool on_thread() const noexcept override { return true; }
  bool short_of_cpu() noexcept override { return is_short; }
  void own_fd(int) noexcept override {}
  void disown_fd(int) noexcept override {}

  /// Runs tasks and jobs, and what they start, until there are none.
  void run_tasks() {
    while (!tasks.empty() || !jobs.empty()) {
      for (auto& task : std::exchange(tasks, {}))
        task();
      if (!jobs.empty())
        next_job()->run();
    }
  }
  /// The next, which has its end at once, as far as others are concerned.
  adverb::service::Job* next_job() {
    const auto begun = jobs.begin();
    jobs.end(begun.party);
    return begun.job;
  }
  /// Lets `time` pass: each timer at its moment, the tasks in between.
  void pass(std::chrono::nanoseconds time) {
    const auto until = clock.time + time;
    for (run_tasks(); !timers.empty() && timers.begin()->first <= until; run_tasks()) {
      clock.time = timers.begin()->first;
      const auto task = std::move(timers.begin()->second.second);
      timers.erase(timers.begin());
      task();
    }
    clock.time = until;
  }

  bool is_short = false; // of the processor
  ManualClock& clock;
  std::map<int, std::function<void(uint32_t)>> watched;
  std::vector<std::function<void()>> tasks;
  adverb::service::Jobs jobs{16};
  std::multimap<std::chrono::nanoseconds, std::pair<uint64_t, std::function<void()>>> timers;
  uint64_t last_timer = 0;
};

struct Lines final : adverb::observe::LogSink {
  void line(adverb::observe::LogLevel level, std::string_view text) noexcept override {
    said.push_back(std::string(to_string(level)) + ": " + std::string(text));
  }
  std::vector<std::string> said;
};

/// Mappings of which no change is ever heard, as the test makes none.
struct Unchanged final : adverb::memory::Monitor {
  bool watch(adverb::memory::Range, adverb::memory::Range) override { return true; }
  void unwatch(adverb::memory::Range) noexcept override {}
};

/// The World with all of these; `real` and `policy` as in Seams.
struct Bench {
  explicit Bench(const adverb::provider::Real* real = nullptr,
                 const adverb::policy::Policy* policy = nullptr)
      : world({.clock = clock,
               .entropy = entropy,
               .service = service,
               .real = real,
               .policy = policy,
               .log_sink = &lines,
               .shared_page = false}) {
    world.parts.monitor.put(std::make_shared<Unchanged>());
  }

  ManualClock clock;
  CountingEntropy entropy;
  ManualService service{clock};
  Lines lines;
  adverb::World world;
};

} // namespace world_test
