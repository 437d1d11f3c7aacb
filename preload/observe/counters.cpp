// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "observe/counters.h"

#include <cstring>

namespace adverb::observe {

namespace {

/// Adds what `from` counted to `to` and zeroes it.
void move_tally(Tally& from, Tally& to) noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  for (size_t i = 0; i < kCounters; ++i)
    to.counters[i].fetch_add(from.counters[i].exchange(0, relaxed), relaxed);
  for (size_t i = 0; i < kGauges; ++i)
    to.gauges[i].fetch_add(from.gauges[i].exchange(0, relaxed), relaxed);
  for (size_t i = 0; i < kRuleSlots; ++i)
    to.rule_hits[i].fetch_add(from.rule_hits[i].exchange(0, relaxed), relaxed);
}

} // namespace

uint64_t Counters::value(Counter c) const noexcept {
  return tally().counters[static_cast<size_t>(c)].load(std::memory_order_relaxed);
}

int64_t Counters::value(Gauge g) const noexcept {
  return tally().gauges[static_cast<size_t>(g)].load(std::memory_order_relaxed);
}

uint64_t Counters::rule_hits(size_t slot) const noexcept {
  return tally().rule_hits[slot < kRuleSlots ? slot : kRuleSlots - 1].load(
      std::memory_order_relaxed);
}

void Counters::move_to(Tally& tally) noexcept {
  tally_.store(&tally, std::memory_order_release);
  move_tally(own_, tally);
}

void Counters::gather() noexcept {
  Tally* now = tally_.load(std::memory_order_acquire);
  if (now != &own_)
    move_tally(own_, *now);
}

void Counters::in_child() noexcept {
  std::memset(static_cast<void*>(&own_), 0, sizeof own_);
  tally_.store(&own_, std::memory_order_release);
}

} // namespace adverb::observe
