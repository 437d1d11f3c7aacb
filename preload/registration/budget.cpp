// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/budget.h"
#include "memory/limits.h"
#include "world/world.h"

#include <algorithm>

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

uint64_t Budgets::window_bytes() {
  return decide(window_bytes_, world_.policy().pinned_budget(), 2);
}

bool Budgets::take_staging(uint64_t bytes) {
  if (used_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= staging_bytes() / 2)
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

bool Budgets::reclaim_slab(const Holder& wanting) {
  const std::lock_guard hold(lock_);
  return std::any_of(holders_.begin(), holders_.end(), [&](Holder* other) {
    return other != &wanting && other->holds_slabs() && other->try_give_back();
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
}

} // namespace adverb::registration

namespace adverb {

registration::Budgets& World::budgets() {
  return parts.budgets.get([&] { return std::make_shared<registration::Budgets>(*this); });
}

} // namespace adverb
