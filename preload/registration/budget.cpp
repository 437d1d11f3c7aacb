// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/budget.h"
#include "memory/limits.h"
#include "observe/directory.h"
#include "registration/recalls.h"
#include "world/world.h"

#include <algorithm>
#include <chrono>
#include <new>

namespace adverb::registration {

namespace {

// min(`most`, `part` of what RLIMIT_MEMLOCK leaves), decided once. At least a byte, which is
// nothing of use, so that none is told from none decided.
uint64_t decide(Atomic<uint64_t>& decided, uint64_t most, uint64_t part) {
  uint64_t bytes = decided.load(std::memory_order_relaxed);
  if (bytes != 0)
    return bytes;
  const uint64_t now =
      std::max<uint64_t>(1, std::min<uint64_t>(most, memory::memlock_left() / part));
  return decided.compare_exchange_strong(bytes, now) ? now : bytes;
}

} // namespace

uint64_t Budgets::staging_bytes() {
  return decide(staging_bytes_, world_.policy().staging(), 4);
}

// A sixteenth of what there is, shared with the others there, and of that what pressure has left.
// At least a page.
uint64_t Budgets::of_the_host() const {
  constexpr uint64_t part = 16;
  const memory::MemoryLimit there_is = memory::memory_limit();
  const auto others = observe::processes_with_pages(observe::own_directories());
  const uint64_t share = there_is.bytes / part / memory::processes_in(there_is.group, others);
  return std::max<uint64_t>(4096, share / 16 * sixteenths_.load());
}

uint64_t Budgets::decide_windows() {
  if (const auto given = world_.policy().pinned_budget())
    return decide(window_bytes_, *given, 2);
  decide(windows_most_, UINT64_MAX, 2);
  looked_at_.store(world_.clock.now().count());
  return decide(window_bytes_, std::min(windows_most_.load(), of_the_host()), 1);
}

void Budgets::look_again() noexcept {
  constexpr std::chrono::nanoseconds each = looks_each;
  if (windows_most_.load(std::memory_order_relaxed) == 0) // it is given, or not decided yet
    return;
  int64_t last = looked_at_.load(std::memory_order_relaxed);
  const int64_t now = world_.clock.now().count();
  if (now - last < each.count() || !looked_at_.compare_exchange_strong(last, now))
    return;
  try {
    world_.service.run([this] {
      // Quick to give way, slow to come back.
      const uint32_t had = sixteenths_.load();
      sixteenths_.store(memory::is_memory_short() ? std::max(1U, had / 2) : std::min(16U, had + 1));
      const uint64_t now_there_are = std::min(windows_most_.load(), of_the_host());
      if (window_bytes_.exchange(now_there_are) > now_there_are)
        world_.recalls().shed();
    });
  } catch (const std::bad_alloc&) { // next time
    world_.counters.count(observe::Counter::exceptions_caught);
  }
}

void Budgets::watch() noexcept {
  if (windows_most_.load(std::memory_order_relaxed) == 0 || watching_.exchange(true))
    return;
  try {
    world_.service.after(looks_each, [this] {
      watching_.store(false);
      if (leased_.load() == 0)
        return;
      look_again();
      watch();
    });
  } catch (const std::bad_alloc&) { // at the next lease
    watching_.store(false);
    world_.counters.count(observe::Counter::exceptions_caught);
  }
}

bool Budgets::take_staging(uint64_t bytes) {
  if (used_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= queues_staging())
    return true;
  give_staging(bytes);
  return false;
}

void Budgets::enter(Holder& holder) {
  const std::lock_guard hold(lock_);
  holders_.push_back(&holder);
}

void Budgets::leave(Holder& holder) noexcept {
  const std::lock_guard hold(lock_);
  std::erase(holders_, &holder);
}

bool Budgets::reclaim_like(const Holder& wanting, bool slabs) {
  const std::lock_guard hold(lock_);
  return std::any_of(holders_.begin(), holders_.end(), [&](Holder* other) {
    return other != &wanting && other->holds_slabs() == slabs && other->try_give_back();
  });
}

bool Budgets::reclaim(const Holder* wanting) {
  const std::lock_guard hold(lock_);
  return std::any_of(holders_.begin(), holders_.end(),
                     [&](Holder* other) { return other != wanting && other->try_give_back(); });
}

void Budgets::in_child() {
  renew(lock_);
  new (&holders_) std::vector<Holder*>; // leaked: it may have been half written
  leased_.store(0);
  watching_.store(false);
  windows_.store(0);
}

} // namespace adverb::registration

namespace adverb {

registration::Budgets& World::budgets() {
  return parts.budgets.get([&] { return std::make_shared<registration::Budgets>(*this); });
}

} // namespace adverb
