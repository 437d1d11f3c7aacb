// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which of the process's addresses have come to mean other memory: unmapped, moved, mapped over,
// given up by madvise(). Who has pages registered and keeps them for later asks here first.
//
// The promise: when a call that changes a watched range has returned, epoch() is another number
// than before it, and news() tells of the range. That is what hooks of munmap() cannot give, as the
// C library unmaps by calls of its own.
#pragma once

#include "world/sync.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace adverb::memory {

struct Range {
  uintptr_t from = 0;
  uintptr_t to = 0; // behind the last byte
  bool meets(const Range& other) const noexcept { return from < other.to && other.from < to; }
};

inline constexpr Range all_memory{0, UINTPTR_MAX};

/// Addresses in stripes of 64 MiB, numbered by turns: who hears that something is about to change
/// hears in which, and no more (userfault.h).
inline constexpr unsigned stripe_bits = 26;
inline constexpr unsigned stripe_count = 16;
using Stripes = uint32_t; // a bit each
inline constexpr Stripes all_stripes = (1U << stripe_count) - 1;
constexpr unsigned stripe_of(uintptr_t address) noexcept {
  return static_cast<unsigned>(address >> stripe_bits) % stripe_count;
}
constexpr Stripes stripes_of(Range range) noexcept {
  Stripes met = 0;
  if (range.from < range.to)
    for (uintptr_t at = range.from >> stripe_bits;
         at <= (range.to - 1) >> stripe_bits && met != all_stripes; ++at)
      met |= 1U << (at % stripe_count);
  return met;
}

/// What a monitor that has a thread is given. `own`: told of each descriptor, which a fork child
/// must close. `say`: told once, in words, why nothing can be watched. `before`, `after`: called
/// before the caller of a change is let go on, by the reader for one, and when that has been told,
/// with the stripes that it is in; they take no lock and allocate nothing.
struct MonitorHooks {
  std::function<void(int)> own;
  std::function<void(const std::string&)> say;
  std::function<void(Stripes)> before = [](Stripes) {};
  std::function<void(Stripes)> after = [](Stripes) {};
};

/// Any thread.
class Monitor {
public:
  Monitor() = default;
  virtual ~Monitor() = default;
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// Changes of `what` are heard of from now on, until as many unwatch() of it; to be called before
  /// its pages are looked at. `within`: may be watched along with it, so that neighbours cost less.
  /// False: they cannot be heard of, and nothing is to be undone. May allocate and take its time.
  virtual bool watch(Range what, Range within) = 0;
  virtual void unwatch(Range what) noexcept = 0;

  /// What is watched there is not any more, for a call that cannot be made otherwise, and counts as
  /// changed. False: nothing was.
  virtual bool forget(Range /*what*/) noexcept { return false; }

  /// Another number after each change. Odd while one is being told.
  uint64_t epoch() const noexcept { return epoch_.load(std::memory_order_acquire); }
  /// Changes told so far.
  uint64_t told() const noexcept { return told_.load(std::memory_order_acquire); }

  /// `tell(Range, coming)` for each change since `seen`, the caller's own, which is set to told();
  /// `coming`: it may still be about to be made. All memory, coming, where they were too many. What
  /// is being told meanwhile is waited for, which takes microseconds and no lock.
  template <typename Tell> void news(uint64_t& seen, Tell&& tell) const {
    const uint64_t epoch = settled();
    const uint64_t goal = told();
    if (goal == seen && this->epoch() == epoch) [[likely]]
      return;
    do
      some_news(seen, tell);
    while (static_cast<int64_t>(goal - seen) > 0);
  }
  /// Whether the range has changed since told() was `since`, or is about to: some calls are heard
  /// of before they do what they do.
  bool has_changed(Range range, uint64_t since) const noexcept;

  /// How long a call takes at most that was heard of before it did what it does. It has nothing to
  /// wait for then but the processor, and the lock of the address space.
  static constexpr std::chrono::seconds coming_due{1};

private:
  /// Of the news the first few: the stack may be a small one of the program's.
  template <typename Tell> void some_news(uint64_t& seen, Tell&& tell) const {
    constexpr size_t few = 16;
    std::array<Range, few> read;
    std::array<bool, few> coming;
    uint64_t epoch = 0;
    uint64_t now = 0;
    size_t count = 0;
    do {
      epoch = settled();
      now = told();
      count = static_cast<size_t>(std::min<uint64_t>(now - seen, few));
      for (size_t i = 0; i < count; ++i) {
        const Change& change = changes_[(seen + i) % changes_max];
        read[i] = change.range();
        coming[i] = change.heard.load(std::memory_order_relaxed) != 0;
      }
    } while (this->epoch() != epoch);
    if (now - seen > changes_max) {
      seen = now;
      return tell(all_memory, true);
    }
    seen += count;
    for (size_t i = 0; i < count; ++i)
      tell(read[i], coming[i]);
  }

protected:
  // In this order; between the first and the last, others wait: nothing is done there that could
  // wait for them. tell(): `coming` where the change is still to be made.
  void begin() noexcept;
  void tell(Range range, bool coming) noexcept;
  void end() noexcept;

private:
  static constexpr size_t changes_max = 256;
  struct Change {
    Atomic<uintptr_t> from{0};
    Atomic<uintptr_t> to{0};
    Atomic<int64_t> heard{0}; // when, in ns of the coarse monotonic clock; 0: it had been made
    Range range() const noexcept {
      return {from.load(std::memory_order_relaxed), to.load(std::memory_order_relaxed)};
    }
  };
  uint64_t settled() const noexcept; // the epoch, once none is being told

  Atomic<bool> telling_{false};
  Atomic<uint64_t> epoch_{0};
  Atomic<uint64_t> told_{0};
  std::array<Change, changes_max> changes_{};
};

} // namespace adverb::memory
