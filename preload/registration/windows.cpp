// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/windows.h"
#include "registration/budget.h"
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

constexpr uintptr_t page = 4096;
// Programs post many receives beside each other, and post them again: they share blocks of so many
// bytes, aligned, or each would have a window of its own, and a page at either end twice.
constexpr uintptr_t receive_block = 256 << 10;

Gauge forced_gauge(const Window& window) {
  return window.receive ? Gauge::recv_forced_bytes : Gauge::send_forced_bytes;
}

void remove(std::list<std::unique_ptr<Window>>& from, const Window* window) noexcept {
  std::erase_if(from, [&](const auto& w) { return w.get() == window; });
}

} // namespace

std::pair<uintptr_t, uintptr_t> window_bounds(const Region& r, uintptr_t start, uintptr_t end) {
  return {std::max(r.start, start & ~(page - 1)),
          std::min<uintptr_t>(r.start + r.length, (end + page - 1) & ~(page - 1))};
}

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
  ++w.users;
}

Window* Windows::find(Region& region, const Usage& usage, const Held& /*held*/) {
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

Window* Windows::keep(std::unique_ptr<Window> fresh, const Usage& usage, const Held& /*held*/) {
  // What needs memory comes first.
  std::list<std::unique_ptr<Window>> one;
  one.push_back(std::move(fresh));
  Window& made = *one.front();
  made.at = used_.insert(used_.end(), &made);
  const uint64_t bytes = made.end - made.start;
  const uint64_t budget = budgets_.window_bytes();
  bytes_ += bytes;
  world_.counters.count(Counter::windows_registered);
  world_.counters.gauge_add(Gauge::pinned_bytes, static_cast<int64_t>(bytes));
  // A receive must be backed before it is posted, whatever the budget says. So must a request that
  // is sent: making it wait for one of another queue pair could wait for a message that only comes
  // when this one has gone. Say how much that was.
  if (bytes_ > budget) {
    made.forced_bytes = std::min<uint64_t>(bytes, bytes_ - budget);
    made.receive = usage.receive;
    world_.counters.gauge_add(forced_gauge(made), static_cast<int64_t>(made.forced_bytes));
    world_.counters.gauge_raise(Gauge::forced_peak_bytes,
                                world_.counters.value(Gauge::recv_forced_bytes) +
                                    world_.counters.value(Gauge::send_forced_bytes));
  }
  note(made, usage);
  made.region->windows.splice(made.region->windows.end(), one);
  return &made;
}

int Windows::use(Region& region, uintptr_t start, size_t length, bool written, bool receive,
                 Window*& window) {
  const Usage usage{start, start + length, written, receive};
  {
    const Held held(lock_);
    hear(held);
    if ((window = find(region, usage, held)) != nullptr)
      return 0;
    const auto [from, to] = window_bounds(region, usage.from, usage.to);
    const uint64_t budget = budgets_.window_bytes();
    shrink_idle(budget > to - from ? budget - (to - from) : 0, held);
  }
  budgets_.look_again();
  // Not under the lock. The region cannot go: the caller holds that of Regions.
  std::unique_ptr<Window> fresh;
  const uint64_t told = world_.monitor().told(); // and what changes from here on
  if (const int rc = make(region, usage, fresh); rc != 0)
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
int Windows::make(Region& region, const Usage& usage, std::unique_ptr<Window>& made) {
  auto fresh = std::make_unique<Window>();
  fresh->shift = region.shift();
  fresh->writable = (region.access & IBV_ACCESS_LOCAL_WRITE) != 0;
  fresh->region = &region;
  const auto bounds = [&](uintptr_t grain) {
    std::tie(fresh->start, fresh->end) =
        window_bounds(region, usage.from & ~(grain - 1), (usage.to + grain - 1) & ~(grain - 1));
  };
  const auto attempt = [&] {
    fresh->mr = budgets_.register_making_room([&] { return register_part(*fresh); });
    return fresh->mr != nullptr;
  };
  bounds(usage.receive ? receive_block : page);
  // The other way round a change in between would not be heard of.
  if (!watch(*fresh) && usage.receive)
    bounds(page); // for it alone
  bool good = attempt();
  // What lies beside it may be gone, or be what RLIMIT_MEMLOCK has no room for.
  if (!good && usage.receive) {
    unwatch(*fresh);
    bounds(page);
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
  made = std::move(fresh);
  return 0;
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

// Whatever has changed since is nobody's any more who comes from here on.
void Windows::hear(const Held& held) noexcept {
  const memory::Monitor* const monitor = world_.parts.monitor.made();
  if (monitor == nullptr) // nothing has been watched
    return;
  monitor->news(seen_, [&](const memory::Range& changed, bool) {
    for (auto* list : {&idle_, &used_})
      for (auto next = list->begin(); next != list->end();) {
        Window& window = **next++;
        if (window.region == nullptr || !changed.meets({window.start, window.end}))
          continue;
        world_.counters.count(Counter::windows_changed);
        detach(std::ranges::find_if(window.region->windows,
                                    [&](const auto& w) { return w.get() == &window; }),
               true, stands_in_the_way(window), held);
      }
  });
}

void Windows::done(Window& window) noexcept {
  const Held held(lock_);
  assert(window.users != 0);
  if (--window.users != 0)
    return;
  if (window.region == nullptr) {
    if (window.standings.empty())
      end_orphan(window, held);
    return;
  }
  forget_forced(window);
  if (!window.watched) {
    deregister(window, held);
    used_.erase(window.at);
    remove(window.region->windows, &window);
    return;
  }
  idle_.splice(idle_.end(), used_, window.at);
  shrink_idle(budgets_.window_bytes(), held);
}

void Windows::end_orphan(Window& window, const Held& held) noexcept {
  if (window.mr != nullptr)
    deregister(window, held);
  used_.erase(window.at);
  remove(orphans_, &window);
}

// One beyond the budget shall go when it is idle, and is not looked for then.
bool Windows::stand(const Region& region, Window& window, Standing& standing) noexcept {
  const Held held(lock_);
  hear(held);
  if (standing.window == &window && standing.stands)
    return true;
  // What was sent from this window before ends before its caller's use of it.
  if (standing.window != &window && standing.in_use())
    return false;
  unstand(standing, held);
  if (window.region != &region || !window.watched || window.forced_bytes != 0 ||
      (standing.written && !(window.writable && (region.access & IBV_ACCESS_LOCAL_WRITE) != 0)) ||
      bytes_ > budgets_.window_bytes())
    return false;
  try {
    window.standings.push_back(&standing);
  } catch (const std::bad_alloc&) {
    return false;
  }
  standing.window = &window;
  standing.until.store(standing.heard.load());
  standing.stands.store(true);
  return true;
}

void Windows::end_standing(Standing& standing) noexcept {
  const Held held(lock_);
  unstand(standing, held);
}

void Windows::unstand(Standing& standing, const Held& held) noexcept {
  standing.stands.store(false);
  Window* const window = std::exchange(standing.window, nullptr);
  if (window == nullptr)
    return;
  std::erase(window->standings, &standing);
  if (window->region == nullptr && window->users == 0 && window->standings.empty())
    end_orphan(*window, held);
}

// Nobody may send from the window any more; whether one who did is still at it.
bool Windows::stands_in_the_way(Window& window) noexcept {
  for (Standing* standing : window.standings)
    standing->stands.store(false);
  return std::ranges::any_of(window.standings, [](Standing* s) { return s->in_use(); });
}

void Windows::forget_standings(Window& window) noexcept {
  for (Standing* standing : window.standings) {
    standing->stands.store(false);
    standing->window = nullptr;
  }
  window.standings.clear();
}

void Windows::drop(Region& region) noexcept {
  const Held held(lock_);
  let_go(region, held, nullptr);
}

void Windows::changed(Region& region, const Region& now) noexcept {
  const Held held(lock_);
  let_go(region, held, &now);
}

void Windows::let_go(Region& region, const Held& held, const Region* now) noexcept {
  while (!region.windows.empty()) {
    const auto& window = region.windows.front();
    assert(window->region == &region && window->mr != nullptr);
    const bool stood_on = stands_in_the_way(*window);
    const bool written =
        window->written || std::ranges::any_of(window->standings, [](const Standing* s) {
          return s->written && s->in_use();
        });
    const unsigned rights = written ? unsigned{IBV_ACCESS_LOCAL_WRITE} : 0U;
    // What was used without a word may be any part of it.
    const auto [from, to] = stood_on ? std::pair(window->start, window->end)
                                     : std::pair(window->used_from, window->used_to);
    const bool lives =
        now != nullptr && still_lies_in(*now, {window->mr->pd, from, to, window->shift, rights});
    detach(region.windows.begin(), lives, stood_on, held);
  }
}

// Nobody new may use the window of the region's list. If it `lives` it does for those who do.
void Windows::detach(std::list<std::unique_ptr<Window>>::iterator at, bool lives, bool stood_on,
                     const Held& held) noexcept {
  Window& window = **at;
  auto& list = std::exchange(window.region, nullptr)->windows;
  lives = lives && (window.users != 0 || stood_on);
  if (!lives || !stood_on)
    forget_standings(window);
  if (!lives)
    deregister(window, held);
  if (window.users == 0 && !lives) {
    idle_.erase(window.at);
    list.erase(at);
    return;
  }
  if (window.users == 0)
    used_.splice(used_.end(), idle_, window.at);
  orphans_.splice(orphans_.end(), list, at);
}

// Gives idle windows back, least recently used first, until at most `limit` bytes are registered.
void Windows::shrink_idle(uint64_t limit, const Held& held) {
  while (bytes_ > limit && give_oldest_back(held)) {
  }
}

// What was sent from since somebody last looked is not old.
bool Windows::was_sent_from(Window& window) noexcept {
  bool was = false;
  for (Standing* standing : window.standings) {
    const uint32_t until = standing->until.load();
    was |= std::exchange(standing->seen, until) != until;
  }
  return was;
}

bool Windows::give_oldest_back(const Held& held) noexcept {
  for (const bool spared : {true, false})
    for (size_t left = idle_.size(); left != 0; --left) {
      Window* oldest = idle_.front();
      assert(oldest->users == 0 && oldest->region != nullptr);
      if ((spared && was_sent_from(*oldest)) || stands_in_the_way(*oldest)) {
        idle_.splice(idle_.end(), idle_, oldest->at);
        continue;
      }
      idle_.pop_front();
      forget_standings(*oldest);
      deregister(*oldest, held);
      world_.counters.count(Counter::windows_evicted);
      remove(oldest->region->windows, oldest);
      return true;
    }
  return false;
}

bool Windows::try_give_back() noexcept {
  if (!lock_.try_lock())
    return false;
  const Held held(lock_, std::adopt_lock);
  return give_oldest_back(held);
}

void Windows::forget_forced(Window& window) {
  world_.counters.gauge_add(forced_gauge(window), -static_cast<int64_t>(window.forced_bytes));
  window.forced_bytes = 0;
}

void Windows::deregister(Window& window, const Held& /*held*/) noexcept {
  const provider::Inside inside;
  world_.provider.real().ibv_dereg_mr(window.mr);
  window.mr = nullptr;
  unwatch(window);
  const auto bytes = window.end - window.start;
  assert(bytes_ >= bytes);
  bytes_ -= bytes;
  world_.counters.gauge_add(Gauge::pinned_bytes, -static_cast<int64_t>(bytes));
  forget_forced(window);
}

} // namespace adverb::registration
