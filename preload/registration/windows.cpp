// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How windows are made and found.
#include "registration/windows.h"
#include "memory/copy.h"
#include "memory/folios.h"
#include "memory/mappings.h"
#include "registration/budget.h"
#include "registration/kept.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <tuple>
#include <utility>

namespace adverb::registration {

using observe::Counter;
using observe::Gauge;

namespace {

// Programs post many receives beside each other, and post them again: they share blocks of so many
// bytes, aligned, or each would have a window of its own, and a page at either end twice.
constexpr uintptr_t receive_block = 256 << 10;
// Who goes by the device with one part of such a size is likely to with the next: what has been
// copied is counted for as much (copied.h).
constexpr uintptr_t part = 64 << 10;

} // namespace

// A region that is shorter than a huge page has no whole one, and is registered as stock would.
uintptr_t page_of(const Region& region) {
  if (region.length < memory::huge_page)
    return memory::base_page();
  uintptr_t known = region.page.load();
  if (known == 0)
    region.page.store(known = memory::page_of_mapping(region.start));
  return known;
}

std::pair<uintptr_t, uintptr_t> window_bounds(const Region& r, uintptr_t start, uintptr_t end) {
  const uintptr_t grain = page_of(r);
  return {std::max(r.start, start & ~(grain - 1)),
          std::min<uintptr_t>(r.start + r.length, (end + grain - 1) & ~(grain - 1))};
}

namespace {

using Bounds = std::pair<uintptr_t, uintptr_t>;

// Of `grain` bytes and whole pages.
Bounds bounds_by(const Region& region, const Windows::Usage& usage, uintptr_t grain) {
  return window_bounds(region, usage.from & ~(grain - 1), (usage.to + grain - 1) & ~(grain - 1));
}

// What a new window for it is to have. Nothing is brought to memory for that.
Bounds wanted_bounds(const Region& region, const Windows::Usage& usage) {
  if (usage.receive)
    return bounds_by(region, usage, receive_block);
  if (usage.to - usage.from < part) {
    const Bounds wide = bounds_by(region, usage, part);
    if (memory::is_here(reinterpret_cast<const void*>(wide.first), wide.second - wide.first))
      return wide;
  }
  return bounds_by(region, usage, 1);
}

} // namespace

// Null and errno as the provider says.
ibv_mr* Windows::register_part(const Window& window) {
  const provider::Inside inside;
  const auto& real = world_.provider.real();
  const Region& region = *window.region;
  const int access = window.writable ? IBV_ACCESS_LOCAL_WRITE : 0;
  auto* at = reinterpret_cast<void*>(window.start);
  const size_t bytes = window.end - window.start;
  return window.shift == 0
             ? real.ibv_reg_mr(region.pd, at, bytes, access)
             : real.ibv_reg_mr_iova(region.pd, at, bytes, window.start + window.shift, access);
}

Windows::Windows(World& world) : world_(world), budgets_(world.budgets()) {
  budgets_.enter(*this);
}

Windows::~Windows() {
  budgets_.leave(*this);
}

void Windows::note(Window& w, const Usage& usage) {
  w.used_from = w.users == 0 ? usage.from : std::min(w.used_from, usage.from);
  w.used_to = w.users == 0 ? usage.to : std::max(w.used_to, usage.to);
  w.written = usage.written || (w.users != 0 && w.written);
  w.receive = w.users == 0 ? usage.receive : w.receive;
  ++w.users;
}

Window* Windows::find(Region& region, const Usage& usage, const Held& /*held*/) noexcept {
  for (auto at = region.windows.begin(); at != region.windows.end(); ++at) {
    Window& known = **at;
    if (!known.watched || known.start > usage.from || known.end < usage.to ||
        (usage.written && !known.writable))
      continue;
    // Who comes next often wants the same, or its neighbour.
    region.windows.splice(region.windows.begin(), region.windows, at);
    if (known.users == 0)
      used_.splice(used_.end(), idle_, known.at);
    note(known, usage);
    world_.counters.count(Counter::windows_cached_hits);
    return &known;
  }
  return nullptr;
}

Window* Windows::keep(std::unique_ptr<Window> fresh, const Usage& usage, const Held& held) {
  // What needs memory comes first.
  std::list<std::unique_ptr<Window>> one;
  one.push_back(std::move(fresh));
  Window& made = *one.front();
  made.at = used_.insert(used_.end(), &made);
  const uint64_t budget = budgets_.room_for_windows();
  bytes_ += made.charged;
  budgets_.take_windows(made.charged);
  shrink_idle(budget, held); // it may be charged for more than it was thought to be
  world_.counters.count(Counter::windows_registered);
  world_.counters.gauge_add(Gauge::pinned_bytes, static_cast<int64_t>(made.end - made.start));
  // A receive must be backed before it is posted, whatever the budget says. So must a request that
  // is sent: making it wait for one of another queue pair could wait for a message that only comes
  // when this one has gone. Say how much that was.
  note(made, usage);
  if (const uint64_t all = budgets_.windows(); all > budget)
    force(made, std::min<uint64_t>(made.charged, all - budget));
  made.region->windows.splice(made.region->windows.end(), one);
  return &made;
}

Window* Windows::use_known(Region& region, const Usage& usage) noexcept {
  const Held held(lock_);
  hear(held);
  return find(region, usage, held);
}

bool Windows::has(const Region& region, uintptr_t from, uintptr_t to) noexcept {
  const Held held(lock_);
  hear(held);
  return std::ranges::any_of(region.windows, [&](const auto& window) {
    return window->watched && window->start <= from && window->end >= to;
  });
}

int Windows::use(Region& region, const Usage& usage, Window*& window) {
  if ((window = use_known(region, usage)) != nullptr)
    return 0;
  const Bounds wanted = wanted_bounds(region, usage);
  if (!usage.optional) {
    const Held held(lock_);
    const uint64_t bytes = wanted.second - wanted.first;
    const uint64_t budget = budgets_.room_for_windows();
    shrink_idle(budget > bytes ? budget - bytes : 0, held);
  }
  budgets_.look_again();
  // Not under the lock. The region cannot go: the caller holds that of Regions.
  std::unique_ptr<Window> fresh;
  const uint64_t told = world_.monitor().told(); // and what changes from here on
  if (const int rc = make(region, usage, wanted, fresh); rc != 0)
    return rc;
  ibv_mr* const made = fresh->mr;
  std::unique_ptr<Window> unneeded;
  try {
    const Held held(lock_);
    hear(held);
    // It may have the pages of before, and is of this request alone then.
    if (fresh->watched && world_.monitor().has_changed({fresh->start, fresh->end}, told))
      unwatch(*fresh);
    if ((window = find(region, usage, held)) != nullptr) // another thread's, made meanwhile
      unneeded = std::move(fresh);
    else
      window = keep(std::move(fresh), usage, held);
  } catch (...) { // nobody knows of it
    const provider::Inside inside;
    world_.provider.real().ibv_dereg_mr(made);
    throw;
  }
  if (unneeded != nullptr) {
    unwatch(*unneeded);
    const provider::Inside inside;
    world_.provider.real().ibv_dereg_mr(unneeded->mr);
  }
  return 0;
}

// A window for it, which nobody knows of yet. errno.
int Windows::make(Region& region, const Usage& usage, Bounds wanted,
                  std::unique_ptr<Window>& made) {
  auto fresh = std::make_unique<Window>();
  fresh->shift = region.shift();
  fresh->writable = (region.access & IBV_ACCESS_LOCAL_WRITE) != 0;
  fresh->region = &region;
  const Bounds least = bounds_by(region, usage, 1);
  std::tie(fresh->start, fresh->end) = wanted;
  const auto attempt = [&] {
    fresh->mr = budgets_.register_making_room([&] { return register_part(*fresh); });
    return fresh->mr != nullptr;
  };
  // The other way round a change in between would not be heard of.
  const bool wide = watch(*fresh) && (widen(*fresh) || wanted != least);
  if (usage.optional && !(fresh->watched && make_room(*fresh))) {
    unwatch(*fresh);
    return ENOSPC;
  }
  if (!fresh->watched)
    std::tie(fresh->start, fresh->end) = least; // for it alone
  bool good = attempt();
  // What lies beside it may be gone, or be what RLIMIT_MEMLOCK has no room for.
  if (!good && wide) {
    unwatch(*fresh);
    std::tie(fresh->start, fresh->end) = least;
    watch(*fresh);
    good = attempt();
  }
  // What goes out may have been write-protected since.
  if (!good && errno == EFAULT && fresh->writable && !usage.written) {
    fresh->writable = false;
    good = attempt();
  }
  if (!good) {
    const int rc = provider::failure();
    unwatch(*fresh);
    return rc;
  }
  // Those that are not watched end with their request, whatever they are charged for.
  fresh->charged = fresh->watched ? kept_for(fresh->start, fresh->end) : fresh->end - fresh->start;
  made = std::move(fresh);
  return 0;
}

// A part of a huge page keeps all of it in place, so all of it may as well be there for whoever
// wants what lies beside. False: it is none.
bool Windows::widen(Window& window) {
  const auto grain = [](uintptr_t at) {
    return memory::is_huge(at) ? memory::huge_page : memory::base_page();
  };
  const uintptr_t start = window.start;
  const uintptr_t end = window.end;
  const auto [from, to] = window_bounds(*window.region, start & ~(grain(start) - 1),
                                        (end + grain(end - 1) - 1) & ~(grain(end - 1) - 1));
  if (from == start && to == end)
    return false;
  unwatch(window);
  std::tie(window.start, window.end) = std::pair(from, to);
  if (watch(window))
    return true;
  std::tie(window.start, window.end) = std::pair(start, end);
  watch(window);
  return false;
}

// Within the budget. What is idle goes for it, but not in vain.
bool Windows::make_room(const Window& window) {
  const uint64_t needed = kept_for(window.start, window.end);
  const Held held(lock_);
  const uint64_t room = budgets_.room_for_windows();
  uint64_t in_use = budgets_.windows();
  for (const Window* idle : idle_)
    in_use -= std::min(in_use, idle->charged);
  if (needed > room || in_use > room - needed)
    return false;
  shrink_idle(room - needed, held);
  return true;
}

// False: its addresses may come to mean other memory, and nobody hears of it.
bool Windows::watch(Window& window) {
  const Region& region = *window.region;
  window.watched = world_.monitor().watch({window.start, window.end},
                                          {region.start, region.start + region.length});
  return window.watched;
}

void Windows::unwatch(Window& window) noexcept {
  if (std::exchange(window.watched, false))
    world_.monitor().unwatch({window.start, window.end});
}

} // namespace adverb::registration
