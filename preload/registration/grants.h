// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Grants: parts of regions that peers were lent, registered with a remote right under a key of
// their own, until the peer gives them back or the region ends.
#pragma once

#include "registration/region.h"

#include <memory>
#include <mutex>

namespace adverb::registration {

// One per program context. Thread-safe; its lock is taken inside that of Regions.
class Grants {
public:
  explicit Grants(World& world) : world_(world) {}
  Grants(const Grants&) = delete;
  Grants& operator=(const Grants&) = delete;

  // Registers the pages of [address, +length), which lies in the region, with `access` added to the
  // region's own local right. errno.
  [[nodiscard]] int lend(Backend& backend, Region& region, uint64_t address, uint64_t length,
                         unsigned access, std::shared_ptr<Grant>& grant);
  // Nothing happens if the region has gone before.
  void take_back(const std::shared_ptr<Grant>& grant) noexcept;
  // The region ends: its grants end here.
  void drop(Region& region) noexcept;
  // It changes, to what it is now (to `now`, if that is another): grants of what peers may still
  // reach live on, all others end here.
  void changed(Region& region, const Region& now) noexcept;

  // In a fork child, where another thread of the parent may have held the lock.
  void in_child() { renew(lock_); }

private:
  using Held = std::lock_guard<Mutex>; // of lock_: shown to what may only be called under it

  void end(Grant& grant, const Held& held) noexcept;

  World& world_;
  Mutex lock_;
};

} // namespace adverb::registration
