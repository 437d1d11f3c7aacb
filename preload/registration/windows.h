// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Windows: page-aligned parts of regions, registered in their protection domain while operations of
// the program's own queue pairs need them, shared by overlapping operations, kept while idle within
// the policy's budget, which all contexts share, least recently used out first.
//
// A region follows addresses, a window has pages. So one that others use, too, or that is kept, is
// of memory whose changes are heard of (memory/monitor.h), and ends for all to come with the first;
// what is under way goes on with the pages it had, as in stock. Where they cannot be heard of, a
// window is of one request.
#pragma once

#include "memory/monitor.h"
#include "registration/budget.h"
#include "registration/region.h"

#include <list>
#include <memory>
#include <mutex>

namespace adverb::registration {

// The pages that [start, end) touches, clipped to the region.
std::pair<uintptr_t, uintptr_t> window_bounds(const Region& r, uintptr_t start, uintptr_t end);

// One per program context. Thread-safe; its lock is taken inside that of Regions, and the budgets'
// inside its own, which only tries other holders'.
class Windows final : public Holder {
public:
  explicit Windows(World& world);
  ~Windows();
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  // What an operation does with a range of addresses, which lies in the region.
  struct Usage {
    uintptr_t from;
    uintptr_t to;
    bool written; // by the device
    bool receive;
    // Rather none than one of this use alone, or beyond the budget: there is another way.
    bool optional = false;
  };
  // A window for it: one that is there, else a new one. The device may take its time over that;
  // meanwhile others are served. errno, that of the registration; ENOSPC: optional, and there is
  // none.
  [[nodiscard]] int use(Region& region, const Usage& usage, Window*& window);
  // One that is there, or null.
  Window* use_known(Region& region, const Usage& usage) noexcept;
  // Whether there is one for [from, to), which keeps the pages in place.
  bool has(const Region& region, uintptr_t from, uintptr_t to) noexcept;
  // At the end of each use. The region may be gone.
  void done(Window& window) noexcept;
  // More is leased: idle ones that have no room beside it any more are given back, and those in use
  // are counted as beyond the budget.
  void make_way() noexcept;
  // The region's window, which the caller is using, is kept in mind by a queue pair, instead of the
  // one that was. False: it shall not be, the other is in use, or memory has run out.
  bool stand(const Region& region, Window& window, Standing& standing) noexcept;
  void end_standing(Standing& standing) noexcept;
  // The region ends: its windows end here, those in use too.
  void drop(Region& region) noexcept;
  // It changes, to what it is now (to `now`, if that is another): windows that are in use live on
  // where they are used for what is still allowed, all others end here.
  void changed(Region& region, const Region& now) noexcept;

  bool try_give_back() noexcept override;
  bool holds_slabs() const noexcept override { return false; }

  // In a fork child, where another thread of the parent may have held the lock.
  void in_child() { renew(lock_); }

private:
  using Held = std::lock_guard<Mutex>; // of lock_: shown to what may only be called under it

  int make(Region& region, const Usage& usage, std::pair<uintptr_t, uintptr_t> wanted,
           std::unique_ptr<Window>& made);
  bool make_room(const Window& window);
  ibv_mr* register_part(const Window& window);
  bool watch(Window& window);
  bool widen(Window& window);
  void unwatch(Window& window) noexcept;
  void hear(const Held& held) noexcept;
  void detach(std::list<std::unique_ptr<Window>>::iterator at, bool lives, bool stood_on,
              const Held& held) noexcept;
  Window* find(Region& region, const Usage& usage, const Held& held) noexcept;
  Window* keep(std::unique_ptr<Window> fresh, const Usage& usage, const Held& held);
  static void note(Window& window, const Usage& usage);
  bool give_oldest_back(const Held& held) noexcept;
  void force(Window& window, uint64_t bytes) noexcept;
  uint64_t forced() const noexcept;
  void forget_forced(Window& window);
  void end_orphan(Window& window, const Held& held) noexcept;
  void unstand(Standing& standing, const Held& held) noexcept;
  static bool was_sent_from(Window& window) noexcept;
  static bool stands_in_the_way(Window& window) noexcept;
  static void forget_standings(Window& window) noexcept;
  void let_go(Region& region, const Held& held, const Region* now) noexcept;
  void shrink_idle(uint64_t limit, const Held& held);
  void deregister(Window& window, const Held& held) noexcept;

  World& world_;
  Budgets& budgets_;
  Mutex lock_;
  std::list<Window*> idle_; // least recently used first
  std::list<Window*> used_; // a window moves between the lists and takes its node along
  uint64_t bytes_ = 0;      // registered
  uint64_t seen_ = 0;       // of the monitor's changes
  std::list<std::unique_ptr<Window>> orphans_; // in use, and nobody new's; from the region's list
};

} // namespace adverb::registration
