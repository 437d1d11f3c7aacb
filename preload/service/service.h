// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Descriptors, timers and small tasks of one adverb, one at a time, apart from the program's calls.
//
// What runs here may wait for nothing, but for jobs. All functions are thread-safe. The product's
// is a thread (thread.h); a test's runs in the test's own.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace adverb::service {

class Job;

/// One of those that share the service: none has more of it than the others, however many jobs it
/// has (jobs.h).
class Party {
  friend class Jobs;
  Job* first_ = nullptr;
  Job* last_ = nullptr;
  Party* next_ = nullptr; // among those that have jobs
  uint32_t credit_ = 0;   // bytes
  size_t under_way_ = 0;
};

/// What may sleep, for as long as the program's memory takes to come. It is its maker's, and as it
/// was posted until it is run.
class Job {
public:
  /// Once, by a thread of the service's; what it throws is counted and logged. Others may take the
  /// service over meanwhile, so on_thread() means nothing here.
  virtual void run() = 0;

protected:
  ~Job() = default;
  /// Whose it is, and how many bytes it moves; not while it is posted. Else it is nobody's.
  void belongs_to(std::shared_ptr<Party> party) noexcept { party_ = std::move(party); }
  void moves(uint32_t bytes) noexcept { bytes_ = bytes; }

private:
  friend class Jobs;
  Job* next_ = nullptr;
  std::shared_ptr<Party> party_;
  uint32_t bytes_ = 0;
};

/// What looks for work of its own accord, without a descriptor.
class Poller {
public:
  /// One look, by the service's thread. `after_job`: one was run since the last. True: it is to
  /// look again, soon.
  virtual bool look(bool after_job) = 0;

protected:
  ~Poller() = default;
};

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

  /// Runs `job` beside all that: jobs of a party are begun in the order they come, each when the
  /// one before it has come to its end or sleeps.
  virtual void post(Job& job) = 0;

  /// Has `poller` look, again and again until it has enough, tasks and jobs in between; after that
  /// anew when a job has been run. Called by what runs here, for a poller that lives as long.
  virtual void poll(Poller& poller) = 0;

  /// Whether the caller is run by this service: for asserts where something is its thread's only.
  virtual bool on_thread() const noexcept = 0;

  /// Whether what runs here has had to wait for a processor for much of the time that it wanted
  /// one. Only watched while somebody asks.
  virtual bool short_of_cpu() noexcept { return false; }

  /// Descriptors that belong to this process alone and that a fork child closes at once.
  virtual void own_fd(int fd) noexcept = 0;
  virtual void disown_fd(int fd) noexcept = 0;
};

} // namespace adverb::service
