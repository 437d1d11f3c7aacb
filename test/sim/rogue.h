// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A third process, with adverb's own links, that has a queue pair in the protection domain of one
// of the programs, so that it reaches the slots of that domain as any peer's queue pair there does.
// It speaks for a queue pair that is another process's and that this has proven to be its own, goes
// all the way to a proof of the same, and asks for what nobody may have it do.
#pragma once

#include "program.h"

#include <memory>

namespace sim {

class Rogue {
public:
  Rogue(Choices& choices, Fabric& fabric, Net& net, const adverb::policy::Policy& policy);
  ~Rogue();
  Rogue(const Rogue&) = delete;
  Rogue& operator=(const Rogue&) = delete;

  // Appends what it may do; it is nobody's thread, for nothing there waits for another.
  void offer(Steps& steps);
  void catch_up(std::chrono::nanoseconds now) { clock_.time = std::max(clock_.time, now); }

private:
  void begin();
  void use(const adverb::link::Offer& offer);
  void ask(uint64_t source);

  Choices& choices_;
  Fabric& fabric_;
  Net& net_;
  Edge edge_;
  Clock clock_;
  Entropy entropy_{uint64_t{3} << 20, uint64_t{1} << 32 | 3};
  Service service_{clock_};
  Words words_;
  adverb::World world_;
  ibv_device* const device_;
  const std::shared_ptr<adverb::link::Links> links_;
  Net::Proven victim_{};
  uint64_t handle_ = 0; // what it calls its queue pair
  adverb::link::Bound bound_;
  uint32_t asks_ = 0;
};

} // namespace sim
