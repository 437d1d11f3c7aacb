// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How much memory one adverb itself may pin, and who has it.
#pragma once

#include "world/no_cancel.h"
#include "world/sync.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb {
class World;
}

namespace adverb::registration {

// Who has something registered that nobody uses right now: slabs of a Staging, idle Windows. This
// file knows no more of them.
class Holder {
public:
  // Gives one such thing back, unless somebody is at it right now or there is none.
  virtual bool try_give_back() noexcept = 0;
  // Whether it is staging memory.
  virtual bool holds_slabs() const noexcept = 0;

protected:
  ~Holder() = default;
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
  // Bytes of idle and used windows, and of leases, that may stay pinned: min(policy, half of what
  // RLIMIT_MEMLOCK leaves). Decided at first use; where the policy leaves it to adverb, looked at
  // again by the service at a use, and while there are leases, each 5 s at most.
  uint64_t window_bytes() {
    const uint64_t bytes = window_bytes_.load(std::memory_order_relaxed);
    return bytes != 0 ? bytes : decide_windows();
  }
  // What leases leave of that to windows.
  uint64_t room_for_windows() {
    const uint64_t bytes = window_bytes();
    return bytes - std::min(bytes, leased_.load(std::memory_order_relaxed));
  }
  // Bytes of windows, of all contexts.
  uint64_t windows() const noexcept { return windows_.load(); }
  void take_windows(uint64_t bytes) noexcept { windows_.fetch_add(bytes); }
  // Those of a fork child's parent are none of its own, and it may end them.
  void give_windows(uint64_t bytes) noexcept {
    uint64_t had = windows_.load();
    while (!windows_.compare_exchange_weak(had, had - std::min(had, bytes))) {
    }
  }
  // Somebody is about to pin more.
  void look_again() noexcept;
  static constexpr std::chrono::seconds looks_each{5};

  uint64_t queues_staging() { return staging_bytes() / 2; }
  // Of that half.
  bool take_staging(uint64_t bytes);
  bool staging_is_ample() { return used_.load(std::memory_order_relaxed) <= staging_bytes() / 4; }
  void give_staging(uint64_t bytes) noexcept { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  // Bytes of SENDs that have come ahead of them, which are not pinned: as many as of staging.
  bool take_ahead(uint64_t bytes) {
    if (ahead_.fetch_add(bytes) + bytes <= staging_bytes())
      return true;
    give_ahead(bytes);
    return false;
  }
  void give_ahead(uint64_t bytes) noexcept { ahead_.fetch_sub(bytes); }
  bool any_ahead() const noexcept { return ahead_.load(std::memory_order_relaxed) != 0; }

  // Bytes of leases, half of those at most; peers that have any share them evenly.
  uint64_t leasable_bytes() { return window_bytes() / 2; }
  bool has_leasable(uint64_t bytes) { return leased_.load() + bytes <= leasable_bytes(); }
  // While any are out memory is looked at as well: who reaches what it has leased asks for nothing.
  bool take_leased(uint64_t bytes) {
    if (leased_.fetch_add(bytes) + bytes <= leasable_bytes()) {
      watch();
      return true;
    }
    give_leased(bytes);
    return false;
  }
  void give_leased(uint64_t bytes) noexcept { leased_.fetch_sub(bytes); }

  // Every holder there is, so that one that needs a slab finds those which do not. Called by them.
  void enter(Holder& holder);
  void leave(Holder& holder) noexcept;
  // True if another one than `wanting` that nobody uses right now gave an empty slab back. The
  // caller holds the lock of `wanting`: those of others are only tried.
  bool reclaim_slab(const Holder& wanting) { return reclaim_like(wanting, true); }
  // The same with an idle window.
  bool reclaim_window(const Holder& wanting) { return reclaim_like(wanting, false); }
  // Registers by `reg`, which returns null and errno as the provider does. Where that or the
  // process's limit has no room left, what nobody uses is given back first, piece by piece. The
  // caller holds no holder's lock but that of `wanting`.
  template <typename Reg> ibv_mr* register_making_room(Reg&& reg, const Holder* wanting = nullptr) {
    const NoCancel whole;
    for (;;) {
      ibv_mr* const mr = reg();
      if (mr != nullptr || (errno != ENOMEM && errno != EAGAIN))
        return mr;
      const int why = errno;
      const bool again = reclaim(wanting);
      errno = why;
      if (!again)
        return nullptr;
    }
  }

  // In a fork child: forgets the parent's holders, whose regions are none of the child's.
  void in_child();

private:
  bool reclaim(const Holder* wanting);
  void watch() noexcept;
  bool reclaim_like(const Holder& wanting, bool slabs);
  uint64_t decide_windows();
  uint64_t of_the_host() const;

  World& world_;
  Atomic<uint64_t> staging_bytes_{0}; // 0: not decided
  Atomic<uint64_t> window_bytes_{0};  // the same
  Atomic<uint64_t> windows_most_{0};  // half of what RLIMIT_MEMLOCK left
  Atomic<int64_t> looked_at_{0};      // ns of the World's clock
  Atomic<bool> watching_{false};
  Atomic<uint32_t> sixteenths_{16}; // of its share, as memory is short or not
  Atomic<uint64_t> used_{0};
  Atomic<uint64_t> leased_{0};
  Atomic<uint64_t> ahead_{0};
  Atomic<uint64_t> windows_{0};
  Mutex lock_;
  std::vector<Holder*> holders_;
};

} // namespace adverb::registration
