// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How windows end: with their memory, with their region, for want of room, and who keeps one in
// mind meanwhile.
#include "registration/windows.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

namespace adverb::registration {

using observe::Counter;
using observe::Gauge;

namespace {

Gauge forced_gauge(const Window& window) {
  return window.receive ? Gauge::recv_forced_bytes : Gauge::send_forced_bytes;
}

void remove(std::list<std::unique_ptr<Window>>& from, const Window* window) noexcept {
  std::erase_if(from, [&](const auto& w) { return w.get() == window; });
}

} // namespace

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
  shrink_idle(budgets_.room_for_windows(), held);
}

void Windows::make_way() noexcept {
  const Held held(lock_);
  const uint64_t room = budgets_.room_for_windows();
  shrink_idle(room, held);
  // What is in use is beyond the budget now as if it had come later.
  const uint64_t all = budgets_.windows();
  uint64_t within = all - std::min(all, forced());
  for (auto at = used_.begin(); at != used_.end() && within > room; ++at) {
    Window& window = **at;
    if (window.mr == nullptr)
      continue;
    const uint64_t more = std::min<uint64_t>(window.charged - window.forced_bytes, within - room);
    force(window, more);
    within -= more;
  }
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
      budgets_.windows() > budgets_.room_for_windows())
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

// Gives idle windows back, least recently used first, until at most `limit` bytes are registered,
// by all contexts. One that has most of it gives first: a busy one does not live on what idle ones
// leave.
void Windows::shrink_idle(uint64_t limit, const Held& held) {
  const auto give = [&](bool own) {
    return own ? give_oldest_back(held) : budgets_.reclaim_window(*this);
  };
  for (uint64_t all = budgets_.windows(); all > limit; all = budgets_.windows()) {
    const bool own_first = bytes_ >= all / 2;
    if (!give(own_first) && !give(!own_first))
      return;
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

// So many more bytes of it are pinned beyond the budget.
void Windows::force(Window& window, uint64_t bytes) noexcept {
  window.forced_bytes += bytes;
  world_.counters.gauge_add(forced_gauge(window), static_cast<int64_t>(bytes));
  world_.counters.gauge_raise(Gauge::forced_peak_bytes, forced());
}

// Of all contexts.
uint64_t Windows::forced() const noexcept {
  return world_.counters.value(Gauge::recv_forced_bytes) +
         world_.counters.value(Gauge::send_forced_bytes);
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
  assert(bytes_ >= window.charged);
  bytes_ -= window.charged;
  budgets_.give_windows(window.charged);
  world_.counters.gauge_add(Gauge::pinned_bytes, -static_cast<int64_t>(window.end - window.start));
  forget_forced(window);
}

} // namespace adverb::registration
