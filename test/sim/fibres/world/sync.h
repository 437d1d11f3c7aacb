// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// In the place of preload/world/sync.h where the simulation compiles the library: the same names,
// with fibres for threads. Before each operation another fibre may go on, and who has to wait gives
// way until it need not. Memory orders mean nothing here: one thread runs all fibres.
#pragma once

#include "../../fibre.h"

#include <atomic>
#include <cassert>
#include <chrono>
#include <mutex>
#include <new>
#include <shared_mutex>

namespace adverb {

/// Whether one holds the other: as std::shared_mutex, and no worse than that as std::mutex.
class SharedMutex {
public:
  void lock() {
    sim::point();
    sim::wait_until(is_free, this);
    sole_ = true;
  }
  bool try_lock() {
    sim::point();
    if (!is_free(this))
      return false;
    return sole_ = true;
  }
  void unlock() {
    assert(sole_);
    sole_ = false;
    sim::point();
  }
  void lock_shared() {
    sim::point();
    sim::wait_until(is_shareable, this);
    ++shared_;
  }
  bool try_lock_shared() {
    sim::point();
    if (sole_)
      return false;
    ++shared_;
    return true;
  }
  void unlock_shared() {
    assert(shared_ != 0);
    --shared_;
    sim::point();
  }

private:
  static bool is_free(const void* lock) noexcept {
    return is_shareable(lock) && static_cast<const SharedMutex*>(lock)->shared_ == 0;
  }
  static bool is_shareable(const void* lock) noexcept {
    return !static_cast<const SharedMutex*>(lock)->sole_;
  }
  bool sole_ = false;
  unsigned shared_ = 0;
};

class Mutex {
public:
  void lock() { lock_.lock(); }
  bool try_lock() { return lock_.try_lock(); }
  void unlock() { lock_.unlock(); }
  int unlock_and(int answer) {
    unlock();
    return answer;
  }

private:
  SharedMutex lock_;
};

class RecursiveMutex {
public:
  void lock() {
    if (depth_ == 0 || owner_ != sim::fibre()) {
      lock_.lock();
      owner_ = sim::fibre();
    }
    ++depth_;
  }
  bool try_lock() {
    if (depth_ == 0 || owner_ != sim::fibre()) {
      if (!lock_.try_lock())
        return false;
      owner_ = sim::fibre();
    }
    ++depth_;
    return true;
  }
  void unlock() {
    assert(depth_ != 0 && owner_ == sim::fibre());
    if (--depth_ == 0)
      lock_.unlock();
  }

private:
  Mutex lock_;
  unsigned owner_ = 0;
  unsigned depth_ = 0;
};

/// No wait runs out of time, but one for a time at most is out of it at once.
class ConditionVariable {
public:
  void notify_one() noexcept { notify_all(); }
  void notify_all() noexcept { ++notes_; }
  template <typename Lock> void wait(Lock& lock) {
    struct Wait {
      const unsigned& notes;
      unsigned seen;
    } wait{notes_, notes_};
    lock.unlock();
    sim::wait_until(
        [](const void* of) noexcept {
          const auto& w = *static_cast<const Wait*>(of);
          return w.notes != w.seen;
        },
        &wait);
    lock.lock();
  }
  template <typename Lock, typename Ready> void wait(Lock& lock, Ready ready) {
    while (!ready())
      wait(lock);
  }
  template <typename Lock, typename Time, typename Ready>
  bool wait_until(Lock&, const Time&, Ready ready) {
    return ready();
  }
  template <typename Lock, typename Time, typename Ready>
  bool wait_for(Lock&, const Time&, Ready ready) {
    return ready();
  }

private:
  unsigned notes_ = 0;
};

using AnyConditionVariable = ConditionVariable;
using QuickMutex = Mutex;

template <typename T> class Atomic {
public:
  constexpr Atomic() noexcept = default;
  constexpr Atomic(T value) noexcept : value_(value) {}
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  T load(std::memory_order = std::memory_order_seq_cst) const noexcept {
    sim::point();
    return value_;
  }
  void store(T value, std::memory_order = std::memory_order_seq_cst) noexcept {
    sim::point();
    value_ = value;
  }
  T exchange(T value, std::memory_order = std::memory_order_seq_cst) noexcept {
    sim::point();
    const T before = value_;
    value_ = value;
    return before;
  }
  bool compare_exchange_strong(T& expected, T desired,
                               std::memory_order = std::memory_order_seq_cst,
                               std::memory_order = std::memory_order_seq_cst) noexcept {
    sim::point();
    if (value_ != expected) {
      expected = value_;
      return false;
    }
    value_ = desired;
    return true;
  }
  bool compare_exchange_weak(T& expected, T desired,
                             std::memory_order order = std::memory_order_seq_cst,
                             std::memory_order = std::memory_order_seq_cst) noexcept {
    return compare_exchange_strong(expected, desired, order);
  }
  T fetch_add(T n, std::memory_order = std::memory_order_seq_cst) noexcept {
    sim::point();
    const T before = value_;
    value_ = static_cast<T>(value_ + n);
    return before;
  }
  T fetch_sub(T n, std::memory_order = std::memory_order_seq_cst) noexcept {
    sim::point();
    const T before = value_;
    value_ = static_cast<T>(value_ - n);
    return before;
  }
  T fetch_or(T n, std::memory_order = std::memory_order_seq_cst) noexcept {
    sim::point();
    const T before = value_;
    value_ = static_cast<T>(value_ | n);
    return before;
  }
  T fetch_and(T n, std::memory_order = std::memory_order_seq_cst) noexcept {
    sim::point();
    const T before = value_;
    value_ = static_cast<T>(value_ & n);
    return before;
  }
  operator T() const noexcept { return load(); }
  // NOLINTNEXTLINE(misc-unconventional-assign-operator): as std::atomic's
  T operator=(T value) noexcept {
    store(value);
    return value;
  }
  T operator+=(T n) noexcept { return static_cast<T>(fetch_add(n) + n); }
  T operator-=(T n) noexcept { return static_cast<T>(fetch_sub(n) - n); }
  T operator++() noexcept { return static_cast<T>(fetch_add(1) + 1); }
  T operator--() noexcept { return static_cast<T>(fetch_sub(1) - 1); }
  T operator++(int) noexcept { return fetch_add(1); }
  T operator--(int) noexcept { return fetch_sub(1); }

private:
  T value_{};
};

/// A T for each fibre.
template <typename T, typename Tag> struct ThreadLocal {
  static T& get() noexcept {
    static T values[sim::fibres_max];
    return values[sim::fibre()];
  }
};

template <typename Lock> void renew(Lock& lock) noexcept {
  new (&lock) Lock;
}

} // namespace adverb
