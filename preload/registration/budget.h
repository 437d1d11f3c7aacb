// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How much memory one adverb itself may pin, and who has it.
#pragma once

#include "world/sync.h"

#include <cstdint>
#include <vector>

namespace adverb {
class World;
}

namespace adverb::registration {

// Who has slabs of staging memory: a Staging, of which this file knows no more.
class SlabHolder {
public:
  // Gives an empty slab back, unless somebody uses it right now or there is none.
  virtual bool try_give_slab_back() noexcept = 0;

protected:
  ~SlabHolder() = default;
};

// World::budgets(), shared by all protection domains. Thread-safe.
class Budgets {
public:
  explicit Budgets(World& world) : world_(world) {}
  Budgets(const Budgets&) = delete;
  Budgets& operator=(const Budgets&) = delete;

  // Staging memory in bytes: min(policy, a quarter of what RLIMIT_MEMLOCK leaves), decided at first
  // use. Half of it is for the program's queues, half for the links' messages.
  uint64_t staging_bytes();
  // Bytes of idle and used windows the policy allows to stay pinned.
  uint64_t window_bytes() const;

  // Of the queues' half.
  bool take_staging(uint64_t bytes);
  void give_staging(uint64_t bytes) noexcept { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  // Every holder there is, so that one that needs a slab finds those which do not. Called by them.
  void enter(SlabHolder& holder);
  void leave(SlabHolder& holder) noexcept;
  // True if another one than `wanting` that nobody uses right now gave an empty slab back. The
  // caller holds the lock of `wanting`: those of others are only tried.
  bool reclaim_slab(const SlabHolder& wanting);

  // In a fork child: forgets the parent's holders, whose regions are none of the child's.
  void in_child();

private:
  World& world_;
  Atomic<uint64_t> staging_bytes_{0}; // 0: not decided
  Atomic<uint64_t> used_{0};
  Mutex lock_;
  std::vector<SlabHolder*> holders_;
};

} // namespace adverb::registration
