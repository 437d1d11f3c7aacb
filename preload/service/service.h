// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Descriptors, timers and small tasks of one adverb, one at a time, apart from the program's calls.
//
// What runs here may wait for nothing. All functions are thread-safe. The product's is a thread
// (thread.h); a test's runs in the test's own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace adverb::service {

class Service {
public:
  virtual ~Service() = default;

  /// Calls `ready` with the epoll events of `fd` until unwatch(). A watched descriptor is an owned
  /// one, too.
  virtual void watch(int fd, uint32_t events, std::function<void(uint32_t)> ready) = 0;
  virtual void change(int fd, uint32_t events) = 0;
  virtual void unwatch(int fd) = 0;

  /// Runs `task` once, soon or after `delay`. The number, never 0, cancels it.
  virtual void run(std::function<void()> task) = 0;
  virtual uint64_t after(std::chrono::nanoseconds delay, std::function<void()> task) = 0;
  virtual void cancel(uint64_t timer) = 0;

  /// Whether a task or timer waits to be run: for what runs here and has more to do.
  virtual bool due() noexcept = 0;

  /// Whether the caller is run by this service: for asserts where something is its thread's only.
  virtual bool on_thread() const noexcept = 0;

  /// Descriptors that belong to this process alone and that a fork child closes at once.
  virtual void own_fd(int fd) noexcept = 0;
  virtual void disown_fd(int fd) noexcept = 0;
};

} // namespace adverb::service
