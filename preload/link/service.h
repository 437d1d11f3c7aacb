// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The one service thread of a process: descriptors, timers and small tasks, one at a time.
//
// Started at first use, never in a process without managed objects. It blocks all signals but the
// ones a fault raises, and ends with the process. Nothing run on it may wait for anything.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace adverb::link {

class Service {
public:
  static Service& get();

  // Calls `ready` with the epoll events of `fd` until unwatch(). All functions are thread-safe.
  void watch(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  void change(int fd, uint32_t events);
  void unwatch(int fd);

  // Runs `task` once, soon or after `delay`. The number cancels it.
  void run(std::function<void()> task);
  uint64_t after(std::chrono::nanoseconds delay, std::function<void()> task);
  void cancel(uint64_t timer);

  // In a fork child: forgets the thread; the next get() starts another.
  static void after_fork_child();

private:
  Service();
  void loop();
  void wake();

  int epoll_ = -1;
  int event_ = -1;
  std::mutex lock_;
  std::unordered_map<int, std::shared_ptr<std::function<void(uint32_t)>>> watched_;
  using Clock = std::chrono::steady_clock;
  std::multimap<Clock::time_point, std::pair<uint64_t, std::function<void()>>> timers_;
  std::vector<std::function<void()>> tasks_;
  uint64_t next_timer_ = 1;
};

// Descriptors that belong to this process alone and that a fork child closes at once.
void own_fd(int fd) noexcept;
void disown_fd(int fd) noexcept;

} // namespace adverb::link
