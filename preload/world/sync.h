// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Locks, atomics and what is each thread's own, by the names the library uses for them: the
// standard library's here. They have names of their own so that a simulation can put fibres in the
// place of threads and switch between them at each of these points; that choice is made when the
// library is compiled and costs nothing in it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <shared_mutex>

namespace adverb {

using Mutex = std::mutex;
using RecursiveMutex = std::recursive_mutex;
using SharedMutex = std::shared_mutex;
using ConditionVariable = std::condition_variable;
using AnyConditionVariable = std::condition_variable_any; // over any of these locks
template <typename T> using Atomic = std::atomic<T>;

/// A mutex of one word for what every post and poll takes: while nobody waits, taking it and
/// letting it go is one atomic instruction each, inline, where a std::mutex takes some fifty
/// instructions. (The third mutex of Drepper, "Futexes Are Tricky", 2011.)
class QuickMutex {
public:
  void lock() noexcept {
    if (!try_lock()) [[unlikely]]
      wait();
  }
  bool try_lock() noexcept {
    uint32_t was = free;
    return word_.compare_exchange_strong(was, held, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  void unlock() noexcept {
    if (word_.fetch_sub(held, std::memory_order_release) != held) [[unlikely]]
      wake();
  }
  // For who has that to return: nothing is kept while somebody is woken.
  int unlock_and(int answer) noexcept {
    if (word_.fetch_sub(held, std::memory_order_release) != held) [[unlikely]]
      return wake_and(answer);
    return answer;
  }

private:
  enum State : uint32_t { free, held, waited_for };
  [[gnu::noinline]] void wait() noexcept {
    while (word_.exchange(waited_for, std::memory_order_acquire) != free)
      word_.wait(waited_for, std::memory_order_relaxed);
  }
  [[gnu::noinline]] void wake() noexcept {
    word_.store(free, std::memory_order_release); // it was waited_for
    word_.notify_one();
  }
  [[gnu::noinline]] int wake_and(int answer) noexcept {
    wake();
    return answer;
  }

  std::atomic<uint32_t> word_{free};
};

/// A T for each thread, initialised as `T{}` when it first looks. `Tag` tells it from others. It
/// lies where the loader reserves room when the program starts, and is reached without a call.
template <typename T, typename Tag> struct ThreadLocal {
  static T& get() noexcept {
    [[gnu::tls_model("initial-exec")]] thread_local T value{};
    return value;
  }
};

/// In a fork child: a lock that a thread of the parent's may have held when only this thread went
/// on. What it held is abandoned, not released.
template <typename Lock> void renew(Lock& lock) noexcept {
  new (&lock) Lock;
}

} // namespace adverb
