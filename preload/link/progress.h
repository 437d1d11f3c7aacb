// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Under what messages are taken: one lock a device, held while handlers run.
#pragma once

#include "link/errands.h"
#include "world/sync.h"

#include <cassert>
#include <cstdint>
#include <mutex>

namespace adverb::link {

// A mutex whose try_lock() lets those pass that wait: threads that poll in a loop would else keep
// it among themselves, and who waits here holds up timers and peers.
class ProgressLock {
public:
  void lock() {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    mutex_.lock();
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    owner_.store(self(), std::memory_order_relaxed);
  }
  bool try_lock() {
    if (waiting_.load(std::memory_order_relaxed) != 0 || !mutex_.try_lock())
      return false;
    owner_.store(self(), std::memory_order_relaxed);
    return true;
  }
  void unlock() {
    owner_.store(nullptr, std::memory_order_relaxed);
    mutex_.unlock();
  }
  // By this thread.
  bool held() const noexcept { return owner_.load(std::memory_order_relaxed) == self(); }

private:
  // What is each thread's own has an address of its own in each.
  static const void* self() noexcept { return &ThreadLocal<char, ProgressLock>::get(); }

  Mutex mutex_;
  Atomic<int> waiting_{0};
  Atomic<const void*> owner_{nullptr};
};

// What the channels of one device have in common for who uses them.
class Progress {
public:
  Progress() = default;
  virtual ~Progress() = default;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Takes what has arrived and runs its handlers unless another thread does; true if anything was
  // there.
  virtual bool progress() = 0;

  // For polls of the program, which come in a loop: when some hundred have found nothing, only
  // every eighth looks. What comes meanwhile waits for it, or for the event that announces it to
  // the service thread, whichever is first.
  void look() {
    looks_.store(looks() + 1, std::memory_order_relaxed);
    const uint32_t empty = empty_looks_.load(std::memory_order_relaxed);
    const bool skip = empty >= looks_before_seldom && empty % look_seldom != 0;
    empty_looks_.store(skip || !progress() ? empty + 1 : 0, std::memory_order_relaxed);
  }

  // The program is about to sleep until something wakes it: it polls no more for a while.
  virtual void rest() {}

  // Held while handlers run. Taking it once means that none that ran before still does.
  ProgressLock& lock() noexcept { return lock_; }

  // When it returns, nothing in scope that handlers have left to be done, and that may not be done
  // any more, is done or will be: what has not begun never will, what only reads the program's
  // memory is of no effect, and what writes there has ended. To be called by the program's threads,
  // after something was made unusable; it takes as long as memory to come that is being written.
  void barrier(const Scope& scope = {}) {
    assert(!lock_.held());
    std::unique_lock hold(lock_);
    errands_.settle(scope, hold);
  }
  Errands& errands() noexcept { return errands_; }

protected:
  // Changes while the program polls.
  uint32_t looks() const noexcept { return looks_.load(std::memory_order_relaxed); }

  ProgressLock lock_;

private:
  Errands errands_;

  static constexpr uint32_t looks_before_seldom = 256;
  static constexpr uint32_t look_seldom = 8;
  // About: threads may overwrite each other's.
  Atomic<uint32_t> looks_{0};
  Atomic<uint32_t> empty_looks_{0};
};

} // namespace adverb::link
