// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/grants.h"
#include "memory/folios.h"
#include "memory/monitor.h"
#include "registration/budget.h"
#include "registration/kept.h"
#include "registration/recalls.h"
#include "registration/windows.h"
#include "world/world.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace adverb::registration {

using observe::Counter;
using observe::Gauge;

namespace {

// A lease of less would be asked for as often, one of more pins what nobody uses; of a huge page,
// which is kept in place as a whole, all of it is leased.
constexpr uintptr_t lease_grain = 64 << 10;
constexpr uint64_t lease_max = 16 << 20; // bytes of one
constexpr unsigned remote_rights =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

} // namespace

int Grants::lend(Region& region, uint64_t address, uint64_t length, unsigned access,
                 std::shared_ptr<Grant>& grant) {
  const auto start = reinterpret_cast<uintptr_t>(region.at(address));
  const auto [from, to] = window_bounds(region, start, start + length);
  std::shared_ptr<Grant> made;
  if (const int rc = make(region, from, to, access, false, made); rc != 0) {
    if (world_.log.every("grant", 10))
      world_.log.warn("cannot register {} bytes for a peer's operation: errno {}; raise "
                      "RLIMIT_MEMLOCK, or pin the region by policy",
                      to - from, rc);
    return rc;
  }
  list(made);
  world_.counters.count(Counter::responder_grants);
  grant = std::move(made);
  return 0;
}

std::pair<uintptr_t, uintptr_t> lease_bounds(const Region& region, uint64_t address,
                                             uint64_t length) {
  const auto start = reinterpret_cast<uintptr_t>(region.at(address));
  constexpr uintptr_t stripe = uintptr_t{1} << memory::stripe_bits;
  const uintptr_t grain = memory::is_huge(start) ? memory::huge_page : lease_grain;
  const uintptr_t end =
      std::min((start + length + grain - 1) & ~(grain - 1), (start & ~(stripe - 1)) + stripe);
  const auto bounds = window_bounds(region, start & ~(grain - 1), end);
  const bool reached = (region.access & remote_rights) != 0;
  return reached && bounds.second - bounds.first <= lease_max ? bounds
                                                              : std::pair<uintptr_t, uintptr_t>{};
}

int Grants::lease(Region& region, uint64_t address, uint64_t length,
                  std::shared_ptr<Grant>& grant) {
  const auto bounds = lease_bounds(region, address, length);
  if (bounds.first == bounds.second)
    return EOPNOTSUPP;
  // What nobody has touched is not brought, which may take its time.
  const auto start = reinterpret_cast<uintptr_t>(region.at(address));
  const auto [from, to] =
      memory::resident_around({start, start + length}, {bounds.first, bounds.second});
  if (from >= to)
    return EAGAIN;
  const uint64_t bytes = kept_for(from, to);
  if (!world_.budgets().take_leased(bytes))
    return EAGAIN;
  memory::Monitor& monitor = world_.monitor();
  const memory::Range range{from, to};
  bool watched = false;
  const auto undo = [&] {
    if (watched)
      monitor.unwatch(range);
    world_.budgets().give_leased(bytes);
  };
  std::shared_ptr<Grant> made;
  try {
    // In this order: what changes from here on is heard of.
    watched = monitor.watch(range, {region.start, region.start + region.length});
    const uint64_t told = monitor.told();
    if (!watched || make(region, from, to, region.access & remote_rights, true, made) != 0) {
      undo();
      return EAGAIN;
    }
    made->told = told;
    made->charged = bytes;
    list(made);
  } catch (...) {
    undo();
    throw;
  }
  grant = std::move(made);
  return 0;
}

bool Grants::is_over(const Grant& grant) noexcept {
  const Held held(lock_);
  return grant.mr == nullptr;
}

bool Grants::is_good(const Grant& grant) noexcept {
  const Held held(lock_);
  if (grant.mr == nullptr)
    return false;
  const uintptr_t from = grant.from;
  return !world_.monitor().has_changed({from, from + grant.bytes}, grant.told);
}

// errno. What is made is nobody's yet.
int Grants::make(Region& region, uintptr_t from, uintptr_t to, unsigned access, bool leased,
                 std::shared_ptr<Grant>& grant) {
  auto made = std::make_shared<Grant>();
  const provider::Inside inside;
  ibv_mr* mr = world_.budgets().register_making_room([&] {
    return world_.provider.real().ibv_reg_mr_iova(
        region.pd, reinterpret_cast<void*>(from), to - from, region.iova + (from - region.start),
        static_cast<int>(access | (region.access & IBV_ACCESS_LOCAL_WRITE)));
  });
  if (mr == nullptr)
    return provider::failure();
  made->key = region.key;
  made->by = shared_from_this();
  made->mr = mr;
  made->region = &region;
  made->rkey = mr->rkey;
  made->bytes = mr->length;
  made->from = from;
  made->start = region.iova + (from - region.start);
  made->access = access;
  made->leased = leased;
  grant = std::move(made);
  return 0;
}

// It ends with its region from here on.
void Grants::list(const std::shared_ptr<Grant>& grant) {
  const uintptr_t from = grant->from;
  bool is_told = false;
  try {
    if (grant->leased)
      world_.recalls().leased().add(from, from + grant->bytes);
    else
      world_.recalls().lend();
    is_told = true;
    const Held held(lock_);
    grant->region->grants.push_back(grant);
  } catch (...) { // nobody knows of it
    if (is_told)
      untell(*grant);
    const provider::Inside inside;
    world_.provider.real().ibv_dereg_mr(grant->mr);
    throw;
  }
  count(*grant, 1);
}

void Grants::untell(const Grant& grant) noexcept {
  if (grant.leased)
    world_.recalls().leased().remove(grant.from, grant.from + grant.bytes);
  else
    world_.recalls().end_lending();
}

void Grants::count(const Grant& grant, int64_t sign) {
  world_.counters.gauge_add(Gauge::pinned_bytes, sign * static_cast<int64_t>(grant.bytes));
  if (grant.leased)
    world_.counters.gauge_add(Gauge::leased_bytes, sign * static_cast<int64_t>(grant.charged));
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
    const uintptr_t start = grant->from;
    if (still_lies_in(now, {grant->mr->pd, start, start + grant->mr->length, grant->start - start,
                            grant->access}))
      return false;
    end(*grant, held);
    return true;
  });
}

void Grants::end(Grant& grant, const Held& /*held*/) noexcept {
  const provider::Inside inside;
  const uintptr_t from = grant.from;
  count(grant, -1);
  world_.provider.real().ibv_dereg_mr(grant.mr);
  untell(grant);
  if (grant.leased) {
    world_.monitor().unwatch({from, from + grant.bytes});
    world_.budgets().give_leased(grant.charged);
  }
  grant.mr = nullptr;
  grant.region = nullptr;
}

} // namespace adverb::registration
