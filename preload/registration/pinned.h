// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What backends share whose regions are the provider's own MRs: real keys, and nothing for adverb
// to carry.
#pragma once

#include "observe/counters.h"
#include "registration/backend.h"

namespace adverb::registration {

class Pinned : public Backend {
public:
  Pinned(const policy::BackendTraits& traits, World& world) : Backend(traits), world_(world) {}

  Refusal fits(const Wanted& wanted) const override;
  Refusal add(const Wanted& wanted, std::unique_ptr<Region>& made) override;
  int end(Region& region) override;
  int change(Region& region, const Change& change, std::unique_lock<SharedMutex>& regions) override;

protected:
  // The region is of the program's `wanted`, and the device is asked for `more` rights.
  Refusal add(const Wanted& wanted, unsigned more, observe::Counter counter,
              std::unique_ptr<Region>& made);
  // The program wants `wanted`, and the device is asked for `asked`.
  int change(Region& region, const Change& wanted, const Change& asked,
             std::unique_lock<SharedMutex>& regions);

  World& world_;
};

} // namespace adverb::registration
