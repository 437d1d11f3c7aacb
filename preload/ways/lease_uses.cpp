// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "ways/lease_uses.h"

#include <algorithm>
#include <utility>

namespace adverb::ways {

Lease* LeaseUses::lease_of(const steering::Request& r) const noexcept {
  const auto use = std::ranges::find(uses_, r.seq, &Use::seq);
  return use == uses_.end() ? nullptr : use->lease;
}

std::shared_ptr<Leases> LeaseUses::leases_of(const steering::Request& r) const noexcept {
  const auto use = std::ranges::find(uses_, r.seq, &Use::seq);
  return use == uses_.end() ? nullptr : use->of;
}

void LeaseUses::end(const steering::Request& r) {
  const auto use = std::ranges::find(uses_, r.seq, &Use::seq);
  if (use == uses_.end())
    return;
  const Use over = std::move(*use);
  uses_.erase(use);
  over.of->done(*over.lease);
}

void LeaseUses::end_all() {
  for (const Use& use : std::exchange(uses_, {}))
    use.of->done(*use.lease);
}

} // namespace adverb::ways
