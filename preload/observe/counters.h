// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Counters and gauges of this process: bumped from anywhere, read by `adverb stat`.
//
// count(), gauge_add() and count_rule() are one relaxed atomic add: no lock, no allocation, no
// system call, safe in signal handlers and from any thread. Before the process has its shared page
// they add to a static one; its sums move over when the page is opened (page.h).
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

namespace detail {
extern std::atomic<Tally*> tally; // never null
}

/// Add n to a counter.
inline void count(Counter c, uint64_t n = 1) noexcept {
  detail::tally.load(std::memory_order_acquire)
      ->counters[static_cast<size_t>(c)]
      .fetch_add(n, std::memory_order_relaxed);
}

/// Move a gauge by n, up or down.
inline void gauge_add(Gauge g, int64_t n) noexcept {
  detail::tally.load(std::memory_order_acquire)
      ->gauges[static_cast<size_t>(g)]
      .fetch_add(n, std::memory_order_relaxed);
}

/// Lift a gauge that shows a peak to n, unless it is there.
inline void gauge_raise(Gauge g, int64_t n) noexcept {
  auto& peak = detail::tally.load(std::memory_order_acquire)->gauges[static_cast<size_t>(g)];
  auto seen = peak.load(std::memory_order_relaxed);
  while (seen < n && !peak.compare_exchange_weak(seen, n, std::memory_order_relaxed)) {
  }
}

/// One hit of the policy's rule `slot` (its index in the compiled policy).
inline void count_rule(size_t slot) noexcept {
  detail::tally.load(std::memory_order_acquire)
      ->rule_hits[slot < kRuleSlots ? slot : kRuleSlots - 1]
      .fetch_add(1, std::memory_order_relaxed);
}

/// Present value of this process; for tests and decisions that are not on the data path.
uint64_t value(Counter c) noexcept;
int64_t value(Gauge g) noexcept;
uint64_t rule_hits(size_t slot) noexcept;

} // namespace adverb::observe
