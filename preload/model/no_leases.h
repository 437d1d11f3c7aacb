// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// While it lives, peers have no lease of a range of memory: what they have is called back, and none
// is given.
#pragma once

#include "registration/recalls.h"
#include "world/world.h"

#include <chrono>

namespace adverb::model {

class NoLeases {
public:
  // Waits for them, for so long at most; who does not answer by then is cut off. The caller holds
  // no lock, and is not the service.
  NoLeases(World& world, const memory::Range& where, std::chrono::milliseconds most)
      : recalls_(world.parts.recalls.made()), where_(memory::stripes_of(where)) {
    if (recalls_ == nullptr)
      return;
    recalls_->begin_change(where_);
    if (recalls_->wait(where_, most))
      return;
    world.counters.count(observe::Counter::recalls_overdue);
    recalls_->overdue(where_);
  }
  ~NoLeases() {
    if (recalls_ != nullptr)
      recalls_->end_change(where_);
  }
  NoLeases(const NoLeases&) = delete;
  NoLeases& operator=(const NoLeases&) = delete;

private:
  registration::Recalls* const recalls_;
  const memory::Stripes where_;
};

} // namespace adverb::model
