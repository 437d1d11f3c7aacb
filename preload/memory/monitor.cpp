// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/monitor.h"

#include <algorithm>
#include <ctime>
#include <sched.h>

namespace adverb::memory {

namespace {

int64_t now() noexcept {
  timespec at{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &at);
  return (int64_t{at.tv_sec} * 1'000'000'000) + at.tv_nsec;
}

} // namespace

uint64_t Monitor::settled() const noexcept {
  for (;;) {
    if (const uint64_t now = epoch(); (now & 1) == 0)
      return now;
    sched_yield();
  }
}

void Monitor::begin() noexcept {
  while (telling_.exchange(true))
    sched_yield();
  epoch_.fetch_add(1);
}

void Monitor::end() noexcept {
  epoch_.fetch_add(1);
  telling_.store(false);
}

void Monitor::tell(Range range, bool coming) noexcept {
  const uint64_t number = told_.load(std::memory_order_relaxed);
  Change& change = changes_[number % changes_max];
  change.from.store(range.from);
  change.to.store(range.to);
  change.heard.store(coming ? std::max<int64_t>(now(), 1) : 0);
  told_.store(number + 1);
}

bool Monitor::has_changed(Range range, uint64_t since) const noexcept {
  constexpr int64_t due = std::chrono::nanoseconds(coming_due).count();
  uint64_t epoch = 0;
  bool changed = false;
  do {
    epoch = settled();
    const uint64_t last = told();
    const int64_t long_ago = now() - due;
    const uint64_t oldest = last > changes_max ? last - changes_max : 0;
    changed = since < oldest;
    for (uint64_t at = last; at != oldest && !changed; --at) {
      const Change& change = changes_[(at - 1) % changes_max];
      const bool counts = at > since || change.heard.load() > long_ago;
      changed = counts && change.range().meets(range);
    }
    // Those before are not known any more.
    changed = changed || (oldest != 0 && changes_[oldest % changes_max].heard.load() > long_ago);
  } while (this->epoch() != epoch);
  return changed;
}

} // namespace adverb::memory
