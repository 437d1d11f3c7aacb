// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Threads of adverb's own in a process whose program has its threads where it wants them.
//
// A thread inherits from the one that starts it, which is one of the program's: bound to one
// processor maybe, of a real-time class, with signals to handle. A program whose pollers are such
// never gives them the processor, so none of that is inherited.
#pragma once

#include <functional>
#include <pthread.h>

namespace adverb::memory {

/// Starts and owns one thread. Not thread-safe.
class OwnThread {
public:
  OwnThread() = default;
  /// It has been joined by then, or detached.
  ~OwnThread() = default;
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;

  /// Has a new thread run `run` under this name (15 characters at most), as a new process of the
  /// user would: on every processor that the process's cpuset has and the kernel does not keep from
  /// its scheduler (isolcpus), of the class SCHED_OTHER, with nice 0 where it was less, and with no
  /// signal of the program's. 0, or an errno value; throws std::bad_alloc. Once.
  int start(const char* name, std::function<void()> run);

  /// Whether it was started and neither joined nor detached.
  bool joinable() const noexcept { return started_; }
  void join() noexcept;
  void detach() noexcept;

private:
  pthread_t thread_{};
  bool started_ = false;
};

} // namespace adverb::memory
