// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Counters and gauges of one adverb: bumped from anywhere, read by `adverb stat`.
//
// count(), gauge_add() and count_rule() are one relaxed atomic add: no lock, no allocation, no
// system call, safe in signal handlers and from any thread. Before there is a shared page they add
// to memory of their own; its sums move over when the page is opened (page.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace adverb::observe {

enum class Counter : uint16_t {
#define COUNTER(name, unit, help) name,
#include "observe/counters.def"
  kCount
};

enum class Gauge : uint16_t {
#define GAUGE(name, unit, help) name,
#include "observe/counters.def"
  kCount
};

inline constexpr size_t kCounters = static_cast<size_t>(Counter::kCount);
inline constexpr size_t kGauges = static_cast<size_t>(Gauge::kCount);

/// Rules of a policy that get a hit counter each; hits of rules past the last slot share it.
inline constexpr size_t kRuleSlots = 128;

/// The numbers themselves, as they lie in the shared page. Plain lock-free words.
struct Tally {
  std::atomic<uint64_t> counters[kCounters];
  std::atomic<int64_t> gauges[kGauges];
  std::atomic<uint64_t> rule_hits[kRuleSlots];
};

/// Bumped from anywhere. Its functions are noexcept, lock-free and usable in signal handlers.
class Counters {
public:
  constexpr Counters() noexcept : tally_(&own_) {}
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

  /// Add n to a counter.
  void count(Counter c, uint64_t n = 1) noexcept {
    present().counters[static_cast<size_t>(c)].fetch_add(n, std::memory_order_relaxed);
  }

  /// Move a gauge by n, up or down.
  void gauge_add(Gauge g, int64_t n) noexcept {
    present().gauges[static_cast<size_t>(g)].fetch_add(n, std::memory_order_relaxed);
  }

  /// Lift a gauge that shows a peak to n, unless it is there.
  void gauge_raise(Gauge g, int64_t n) noexcept {
    auto& peak = present().gauges[static_cast<size_t>(g)];
    auto seen = peak.load(std::memory_order_relaxed);
    while (seen < n && !peak.compare_exchange_weak(seen, n, std::memory_order_relaxed)) {
    }
  }

  /// One hit of the policy's rule `slot` (its index in the compiled policy).
  void count_rule(size_t slot) noexcept {
    present().rule_hits[slot < kRuleSlots ? slot : kRuleSlots - 1].fetch_add(
        1, std::memory_order_relaxed);
  }

  /// Present value; for tests and decisions that are not on the data path.
  uint64_t value(Counter c) const noexcept;
  int64_t value(Gauge g) const noexcept;
  uint64_t rule_hits(size_t slot) const noexcept;

  /// Counts go to `tally` from now on, and so does what was counted until now. A count that raced
  /// with this arrives where counts went before: gather() moves what came late. For the page.
  void move_to(Tally& tally) noexcept;
  void gather() noexcept;
  /// In a fork child: from zero, in memory of its own.
  void in_child() noexcept;

  const Tally& tally() const noexcept { return *tally_.load(std::memory_order_acquire); }

private:
  Tally& present() noexcept { return *tally_.load(std::memory_order_acquire); }

  Tally own_{}; // while there is no page
  std::atomic<Tally*> tally_;
};

} // namespace adverb::observe
