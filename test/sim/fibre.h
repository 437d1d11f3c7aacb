// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Fibres: what the threads of a schedule's programs are. One runs at a time, and gives way only at
// a point: a lock or an atomic operation of the library (fibres/world/sync.h), there once in so
// many points as the schedule's choices say. Then the schedule goes on with whatever it chooses:
// the device, another thread, or the same.
//
// Fibre 0 is the schedule itself, which is no thread of a program and is never interrupted.
#pragma once

#include "choices.h"

#include <cstdint>
#include <functional>

namespace sim {

inline constexpr uint32_t fibres_max = 11;

// Beneath: what sync.h needs at every operation.
namespace fibres {
extern uint32_t running;
extern uint32_t countdown; // points until the next that interrupts; 0: none does
void interrupt();
void give_way(bool (*ready)(const void*) noexcept, const void* of);
} // namespace fibres

inline uint32_t fibre() noexcept {
  return fibres::running;
}

// Here another may go on.
inline void point() {
  if (fibres::countdown != 0 && fibres::running != 0 && --fibres::countdown == 0)
    fibres::interrupt();
}

// Goes on when `ready(of)` is true; it must stay so unless somebody else does something.
inline void wait_until(bool (*ready)(const void*) noexcept, const void* of) {
  if (!ready(of))
    fibres::give_way(ready, of);
}

// The threads of one schedule.
class Fibres {
public:
  // Who goes on is interrupted within less than `period` points, or not at all; 0: never.
  Fibres(Choices& choices, uint32_t period);
  ~Fibres();
  Fibres(const Fibres&) = delete;
  Fibres& operator=(const Fibres&) = delete;

  // Has `fibre` (1 to fibres_max - 1) do this; returns when it has, or gives way. Only one that is
  // not busy.
  void start(uint32_t fibre, std::function<void()> task);
  bool busy(uint32_t fibre) const;
  // Busy, and not waiting for another.
  bool runnable(uint32_t fibre) const;
  void resume(uint32_t fibre);
  // Nobody is busy.
  bool idle() const;
  // No point interrupts any more; who waits still gives way.
  void calm() noexcept;

  // Times that one that could have gone on was left for something else.
  size_t switches() const noexcept { return switches_; }
  // The schedule does something else than the last that was interrupted.
  void turned_away() noexcept;

private:
  friend void fibres::interrupt();
  void run(uint32_t fibre);

  Choices& choices_;
  uint32_t period_;
  uint32_t interrupted_ = 0; // the last one, until it is resumed or left
  size_t switches_ = 0;
};

} // namespace sim
