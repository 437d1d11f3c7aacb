// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which of a few threads serves, so that one that sleeps stops nothing. One leads. While it runs a
// job it leaves a mark; a watcher, which runs none itself, finds a mark that has stood for a while
// and has a spare thread lead. Who led before goes on with its job alone and is a spare afterwards.
//
// Nobody can tell a thread that sleeps from one that was preempted, nor one that copies much: to be
// overtaken costs nobody anything. Threads are bounded: when as many sleep as may, the one that
// leads runs no jobs. While no job is run the watcher sleeps.
#pragma once

#include "service/service.h"
#include "world/sync.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace adverb {
class World;
}

namespace adverb::service {

class Relay {
public:
  /// `lead` is called by the thread that leads; it returns when run() has told it that another one
  /// does. The relay lives as long as the process, as its threads may.
  Relay(World& world, std::function<void()> lead);
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// The first thread; false: there can be none.
  bool start();

  /// Whether the calling thread leads.
  bool leads() const noexcept;

  /// For who leads. Whether a job may be run: another could take over if it slept.
  bool may_run() const noexcept { return asleep_.load() < asleep_max; }
  /// Runs it; false: another thread has taken over meanwhile.
  bool run(Job& job);

  static constexpr size_t asleep_max = 16; // threads that sleep in jobs

private:
  struct Runner { // a thread
    const Relay* relay;
  };
  static const Runner*& here() noexcept { return ThreadLocal<const Runner*, Relay>::get(); }

  bool start_thread(void (Relay::*main)());
  void serve();
  void watch();
  void have_watched();
  void take_over(uint64_t mark);
  void make_spare(std::unique_lock<Mutex>& held);
  void log_no_threads();

  World& world_;
  const std::function<void()> lead_;
  // Odd while who leads runs a job: who makes it even has it, the runner or the watcher.
  Atomic<uint64_t> mark_{0};
  Atomic<std::chrono::nanoseconds> since_{std::chrono::nanoseconds{0}}; // it was left then
  Atomic<bool> watched_{false}; // the watcher looks at the mark
  Atomic<size_t> asleep_{0};
  Atomic<const Runner*> leader_{nullptr}; // changed under the lock
  Mutex lock_;
  ConditionVariable woken_;           // who may lead, or look
  std::vector<const Runner*> spares_; // that wait
  bool coming_ = false;               // another spare was started
  bool has_watcher_ = false;
  std::chrono::nanoseconds watcher_not_before_{0};
};

} // namespace adverb::service
