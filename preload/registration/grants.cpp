// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/grants.h"
#include "registration/budget.h"
#include "registration/windows.h"
#include "world/world.h"

#include <algorithm>

namespace adverb::registration {

using observe::Counter;
using observe::Gauge;

int Grants::lend(Backend& backend, Region& region, uint64_t address, uint64_t length,
                 unsigned access, std::shared_ptr<Grant>& grant) {
  const auto start = reinterpret_cast<uintptr_t>(region.at(address));
  const auto [from, to] = window_bounds(region, start, start + length);
  auto made = std::make_shared<Grant>();
  const provider::Inside inside;
  ibv_mr* mr = world_.budgets().register_making_room([&] {
    return world_.provider.real().ibv_reg_mr_iova(
        region.pd, reinterpret_cast<void*>(from), to - from, region.iova + (from - region.start),
        static_cast<int>(access | (region.access & IBV_ACCESS_LOCAL_WRITE)));
  });
  if (mr == nullptr) {
    const int rc = provider::failure();
    if (world_.log.every("grant", 10))
      world_.log.warn("cannot register {} bytes for a peer's operation: errno {}; raise "
                      "RLIMIT_MEMLOCK or pin the region by policy",
                      to - from, rc);
    return rc;
  }
  made->key = region.key;
  made->backend = &backend;
  made->mr = mr;
  made->region = &region;
  made->rkey = mr->rkey;
  made->bytes = mr->length;
  made->start = region.iova + (from - region.start);
  made->access = access;
  try {
    const Held held(lock_);
    region.grants.push_back(made);
  } catch (...) { // nobody knows of it
    world_.provider.real().ibv_dereg_mr(mr);
    throw;
  }
  world_.counters.gauge_add(Gauge::pinned_bytes, static_cast<int64_t>(mr->length));
  world_.counters.count(Counter::responder_grants);
  grant = std::move(made);
  return 0;
}

void Grants::take_back(const std::shared_ptr<Grant>& grant) noexcept {
  const Held held(lock_);
  if (grant->mr == nullptr)
    return;
  std::erase(grant->region->grants, grant);
  end(*grant, held);
}

void Grants::drop(Region& region) noexcept {
  const Held held(lock_);
  for (auto& grant : region.grants)
    end(*grant, held);
  region.grants.clear();
}

void Grants::changed(Region& region, const Region& now) noexcept {
  const Held held(lock_);
  std::erase_if(region.grants, [&](const auto& grant) {
    const auto start = reinterpret_cast<uintptr_t>(grant->mr->addr);
    if (still_lies_in(now, {grant->mr->pd, start, start + grant->mr->length, grant->start - start,
                            grant->access}))
      return false;
    end(*grant, held);
    return true;
  });
}

void Grants::end(Grant& grant, const Held& /*held*/) noexcept {
  const provider::Inside inside;
  world_.counters.gauge_add(Gauge::pinned_bytes, -static_cast<int64_t>(grant.mr->length));
  world_.provider.real().ibv_dereg_mr(grant.mr);
  grant.mr = nullptr;
  grant.region = nullptr;
}

} // namespace adverb::registration
