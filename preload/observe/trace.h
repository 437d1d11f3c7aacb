// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The last decisions of a process, as they lie in the shared page for `adverb trace`: a ring, of
// which the oldest events are written over.
//
// Writers are any threads, readers are in any process. Each slot has a sequence number: odd while
// event n is written there, 2n + 2 when it is whole. A writer that finds a slot taken by another,
// one round before or after it, leaves its own event out.
#pragma once

#include "world/clock.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace adverb::observe {

/// What `first`, `second`, `key`, `address` and `bytes` of an event mean; the others are 0.
enum class TraceKind : uint8_t {
  none,
  way,   ///< requests of one shape take another way: opcode, row of ways.def; Reason; remote key;
         ///< bytes of the request, how many times it has changed in `address`
  peer,  ///< steering::Peer, as the queue pair now takes its peer to be
  proof, ///< 1: the queue pair and its peer are proven to each other; 0: they could not be
  lease, ///< a lease is usable: its key, address and bytes; `first` 1: a view (np)
  lease_end, ///< leases have ended, `address` of them; LeaseEnd
  steer, ///< measurement has chosen: class of lengths, steering::Steer::Choice; in `address` ns for
         ///< a thousand requests
  policy, ///< another policy is in force
};

/// Of `way`: all requests under that key.
inline constexpr uint8_t trace_any_opcode = 0xfe;

enum class LeaseEnd : uint8_t { called_back, unused, region_ended };

struct TraceEvent {
  uint64_t time_ns = 0; ///< of the clock of the process, which is CLOCK_MONOTONIC
  uint32_t qpn = 0;     ///< 0: of no queue pair
  TraceKind kind = TraceKind::none;
  uint8_t first = 0;
  uint8_t second = 0;
  uint8_t reason = 0;
  uint32_t key = 0;
  uint32_t zero = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;
};

struct TraceSlot {
  static constexpr size_t words = sizeof(TraceEvent) / sizeof(uint64_t);
  static_assert(sizeof(TraceEvent) % sizeof(uint64_t) == 0);

  std::atomic<uint64_t> sequence; ///< 0: free so far
  std::atomic<uint64_t> event[words];
};

inline constexpr size_t kTraceEvents = 512;
/// Another number with each change of what the fields mean, rows of ways.def included: `adverb
/// trace` then refuses the pages of other builds.
inline constexpr uint64_t kTraceMeaning = 3;
struct TraceRing {
  std::atomic<uint64_t> next; ///< number of the next event; the first is 0
  std::array<TraceSlot, kTraceEvents> slots;
};

/// False: there is none, or it is being written just now. `number`: the event's.
bool read_event(const TraceSlot& slot, TraceEvent& out, uint64_t& number) noexcept;

class Trace {
public:
  explicit Trace(Clock& clock) noexcept : clock_(clock), ring_(&own_) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Any thread; no lock, no system call. Its time is set here.
  void add(TraceEvent event) noexcept;

  /// Events go to `page` from now on, and so do those there are. One that another thread writes
  /// just then may be lost. For the page.
  void move_to(TraceRing& page) noexcept;
  /// In a fork child: an empty one, in memory of its own. Takes no lock.
  void in_child() noexcept;

  const TraceRing& ring() const noexcept { return *ring_.load(std::memory_order_acquire); }

private:
  Clock& clock_;
  TraceRing own_{}; // while there is no page
  std::atomic<TraceRing*> ring_;
};

} // namespace adverb::observe
