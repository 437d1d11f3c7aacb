// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/budget.h"
#include "memory/limits.h"
#include "world/world.h"

#include <algorithm>

namespace adverb::registration {

uint64_t Budgets::staging_bytes() {
  uint64_t bytes = staging_bytes_.load(std::memory_order_relaxed);
  if (bytes != 0)
    return bytes;
  // At least a byte, which is no slab, so that nothing is told from nothing decided.
  const uint64_t now = std::max<uint64_t>(
      1, std::min<uint64_t>(world_.policy().staging(), memory::memlock_left() / 4));
  return staging_bytes_.compare_exchange_strong(bytes, now) ? now : bytes;
}

uint64_t Budgets::window_bytes() const {
  return world_.policy().pinned_budget();
}

bool Budgets::take_staging(uint64_t bytes) {
  if (used_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= staging_bytes() / 2)
    return true;
  give_staging(bytes);
  return false;
}

void Budgets::enter(SlabHolder& holder) {
  const std::lock_guard hold(lock_);
  holders_.push_back(&holder);
}

void Budgets::leave(SlabHolder& holder) noexcept {
  const std::lock_guard hold(lock_);
  std::erase(holders_, &holder);
}

bool Budgets::reclaim_slab(const SlabHolder& wanting) {
  const std::lock_guard hold(lock_);
  return std::any_of(holders_.begin(), holders_.end(), [&](SlabHolder* other) {
    return other != &wanting && other->try_give_slab_back();
  });
}

void Budgets::in_child() {
  renew(lock_);
  new (&holders_) std::vector<SlabHolder*>; // leaked: it may have been half written
}

} // namespace adverb::registration

namespace adverb {

registration::Budgets& World::budgets() {
  return parts.budgets.get([&] { return std::make_shared<registration::Budgets>(*this); });
}

} // namespace adverb
