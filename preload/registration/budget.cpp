// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/budget.h"
#include "memory/limits.h"
#include "policy/policy.h"

#include <algorithm>

namespace adverb::registration {
uint64_t staging_bytes() {
  static const uint64_t bytes =
      std::min<uint64_t>(policy::current().staging(), memory::memlock_left() / 4);
  return bytes;
}

uint64_t window_bytes() {
  return policy::current().pinned_budget();
}

bool Budget::take(uint64_t bytes) noexcept {
  if (used_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= limit_)
    return true;
  give(bytes);
  return false;
}

Budget& staging_budget() {
  static auto* budget = new Budget(staging_bytes() / 2);
  return *budget;
}

} // namespace adverb::registration
