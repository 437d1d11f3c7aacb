// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Grants: parts of regions that peers were lent, registered with a remote right under a key of
// their own, until the peer gives them back or the region ends.
//
// One that a peer keeps for as long as it uses it is a lease: a larger part, of memory whose
// changes are heard of (recalls.h), within half of the budget for windows.
#pragma once

#include "registration/region.h"

#include <memory>
#include <mutex>
#include <utility>

namespace adverb::registration {

// What of the region is leased where somebody wants those bytes of it: addresses of the process,
// of one stripe (memory/monitor.h), so perhaps not all of the bytes. Equal: nothing, ever.
std::pair<uintptr_t, uintptr_t> lease_bounds(const Region& region, uint64_t address,
                                             uint64_t length);

// One per program context. Thread-safe; its lock is taken inside that of Regions.
class Grants final : public Lender, public std::enable_shared_from_this<Grants> {
public:
  explicit Grants(World& world) : world_(world) {}

  // Registers the pages of [address, +length), which lies in the region, with `access` added to the
  // region's own local right. errno.
  [[nodiscard]] int lend(Region& region, uint64_t address, uint64_t length, unsigned access,
                         std::shared_ptr<Grant>& grant);
  // Of the bytes that lease_bounds() says what is in memory around [address, +length) without a
  // gap, with the region's rights. errno; EAGAIN: not now, EOPNOTSUPP: never.
  [[nodiscard]] int lease(Region& region, uint64_t address, uint64_t length,
                          std::shared_ptr<Grant>& grant);
  bool is_good(const Grant& grant) noexcept override;
  bool is_over(const Grant& grant) noexcept override;
  void take_back(const std::shared_ptr<Grant>& grant) noexcept override;
  // The region ends: its grants end here.
  void drop(Region& region) noexcept;
  // It changes, to what it is now (to `now`, if that is another): grants of what peers may still
  // reach live on, all others end here.
  void changed(Region& region, const Region& now) noexcept;

  // In a fork child, where another thread of the parent may have held the lock.
  void in_child() { renew(lock_); }

private:
  using Held = std::lock_guard<Mutex>; // of lock_: shown to what may only be called under it

  int make(Region& region, uintptr_t from, uintptr_t to, unsigned access, bool leased,
           std::shared_ptr<Grant>& grant);
  void list(const std::shared_ptr<Grant>& grant);
  void untell(const Grant& grant) noexcept;
  void count(const Grant& grant, int64_t sign);
  void end(Grant& grant, const Held& held) noexcept;

  World& world_;
  Mutex lock_;
};

} // namespace adverb::registration
