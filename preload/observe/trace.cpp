// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "observe/trace.h"

#include <bit>
#include <cstring>

namespace adverb::observe {

namespace {

using EventWords = std::array<uint64_t, TraceSlot::words>;

// As for peers.cpp: releases and acquires, so that a reader that finds one word of a later event
// finds its sequence number, too.
void write_event(TraceSlot& slot, uint64_t number, const TraceEvent& event) noexcept {
  uint64_t before = slot.sequence.load(std::memory_order_relaxed);
  if (before % 2 != 0 || before > 2 * number ||
      !slot.sequence.compare_exchange_strong(before, 2 * number + 1, std::memory_order_relaxed))
    return;
  const auto words = std::bit_cast<EventWords>(event);
  for (size_t i = 0; i < words.size(); ++i)
    slot.event[i].store(words[i], std::memory_order_release);
  slot.sequence.store(2 * number + 2, std::memory_order_release);
}

} // namespace

bool read_event(const TraceSlot& slot, TraceEvent& out, uint64_t& number) noexcept {
  const uint64_t before = slot.sequence.load(std::memory_order_acquire);
  EventWords words;
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = slot.event[i].load(std::memory_order_acquire);
  if (before == 0 || before % 2 != 0 || slot.sequence.load(std::memory_order_relaxed) != before)
    return false;
  out = std::bit_cast<TraceEvent>(words);
  number = before / 2 - 1;
  return true;
}

void Trace::add(TraceEvent event) noexcept {
  event.time_ns = static_cast<uint64_t>(clock_.now().count());
  TraceRing& ring = *ring_.load(std::memory_order_acquire);
  const uint64_t number = ring.next.fetch_add(1, std::memory_order_relaxed);
  write_event(ring.slots[number % kTraceEvents], number, event);
}

void Trace::move_to(TraceRing& page) noexcept {
  const TraceRing& from = ring();
  page.next.store(from.next.load(std::memory_order_relaxed), std::memory_order_relaxed);
  for (const TraceSlot& slot : from.slots) {
    TraceEvent event;
    uint64_t number = 0;
    if (read_event(slot, event, number))
      write_event(page.slots[number % kTraceEvents], number, event);
  }
  ring_.store(&page, std::memory_order_release);
}

void Trace::in_child() noexcept {
  std::memset(static_cast<void*>(&own_), 0, sizeof own_);
  ring_.store(&own_, std::memory_order_release);
}

} // namespace adverb::observe
