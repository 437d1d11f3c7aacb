// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "observe/counters.h"

#include "observe/layout.h"

namespace adverb::observe {

namespace detail {
// Constant initialised: hooks may count before any constructor has run.
constinit Page private_page{};
constinit std::atomic<Tally*> tally{&private_page.tally};
} // namespace detail

uint64_t value(Counter c) noexcept {
  return detail::tally.load(std::memory_order_acquire)
      ->counters[static_cast<size_t>(c)]
      .load(std::memory_order_relaxed);
}

int64_t value(Gauge g) noexcept {
  return detail::tally.load(std::memory_order_acquire)
      ->gauges[static_cast<size_t>(g)]
      .load(std::memory_order_relaxed);
}

uint64_t rule_hits(size_t slot) noexcept {
  return detail::tally.load(std::memory_order_acquire)
      ->rule_hits[slot < kRuleSlots ? slot : kRuleSlots - 1]
      .load(std::memory_order_relaxed);
}

} // namespace adverb::observe
