// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/regions.h"
#include "observe/counters.h"
#include "provider/real.h"

#include <algorithm>
#include <cerrno>
#include <mutex>

namespace adverb::registration {

using observe::Counter;
using observe::Gauge;

namespace {

constexpr unsigned remote_rights =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

void count_live(const Region& r, int64_t sign) {
  observe::gauge_add(Gauge::live_regions_unpinned, sign);
  observe::gauge_add(Gauge::live_bytes_unpinned, sign * static_cast<int64_t>(r.length));
}

// [address, +length) inside the region by the addresses work requests use; no wrap.
bool inside(const Region& r, uint64_t address, uint64_t length) {
  return address >= r.iova && length <= r.length && address - r.iova <= r.length - length;
}

} // namespace

ibv_mr* Regions::add_unpinned(ibv_pd* pd, void* start, size_t length, uint64_t iova,
                              unsigned access) {
  auto key = keys_.take();
  if (!key)
    return nullptr;
  auto region = std::make_unique<Region>();
  region->pd = pd;
  region->start = reinterpret_cast<uintptr_t>(start);
  region->iova = iova;
  region->length = length;
  region->access = access;
  region->mr.context = pd->context;
  region->mr.pd = pd;
  region->mr.addr = start;
  region->mr.length = length;
  region->mr.lkey = region->mr.rkey = key->value();
  region->key = std::move(key);
  ibv_mr* mr = &region->mr;
  observe::count(Counter::regions_unpinned);
  observe::count(Counter::region_bytes_unpinned, length);
  count_live(*region, 1);
  const std::unique_lock hold(lock_);
  by_key_[mr->lkey] = region.get();
  by_mr_[mr] = std::move(region);
  return mr;
}

void Regions::add_pinned(ibv_mr* real, uint64_t iova, unsigned access) {
  auto region = std::make_unique<Region>();
  region->real = real;
  region->pd = real->pd;
  region->start = reinterpret_cast<uintptr_t>(real->addr);
  region->iova = iova;
  region->length = real->length;
  region->access = access;
  const std::unique_lock hold(lock_);
  by_key_[real->lkey] = region.get();
  by_mr_[real] = std::move(region);
}

bool Regions::is_unpinned(const ibv_mr* mr) const {
  const std::shared_lock hold(lock_);
  const auto it = by_mr_.find(mr);
  return it != by_mr_.end() && !it->second->pinned();
}

std::unique_ptr<Region> Regions::remove(ibv_mr* mr) {
  std::unique_ptr<Region> region;
  {
    const std::unique_lock hold(lock_);
    const auto it = by_mr_.find(mr);
    if (it == by_mr_.end())
      return nullptr;
    region = std::move(it->second);
    *region->alive = false;
    by_mr_.erase(it);
    const auto key = by_key_.find(region->pinned() ? region->real->lkey : region->mr.lkey);
    if (key != by_key_.end() && key->second == region.get())
      by_key_.erase(key);
  }
  if (region->pinned())
    return region;
  count_live(*region, -1);
  observe::count(Counter::regions_deregistered);
  drop_parts(*region);
  return region;
}

// Windows and grants end here even if work requests still use them: that is what deregistering a
// region with work outstanding does to a stock program too, and the device reports it the same way.
void Regions::drop_parts(Region& region) noexcept {
  const std::lock_guard parts(windows_lock_);
  for (auto& window : region.windows) {
    window->region = nullptr;
    const bool used = window->users != 0;
    if (!used)
      idle_.erase(window->idle);
    destroy(*window);
    if (used)
      orphans_.push_back(std::move(window));
  }
  region.windows.clear();
  for (auto& grant : region.grants) {
    if (grant->mr != nullptr) {
      const provider::Inside inside;
      observe::gauge_add(Gauge::pinned_bytes, -static_cast<int64_t>(grant->mr->length));
      provider::real().ibv_dereg_mr(grant->mr);
    }
    grant->mr = nullptr;
    grant->region = nullptr;
  }
  region.grants.clear();
}

int Regions::change(ibv_mr* mr, int what, ibv_pd* pd, void* start, size_t length, unsigned access) {
  const std::unique_lock hold(lock_);
  const auto it = by_mr_.find(mr);
  if (it == by_mr_.end() || it->second->pinned())
    return EINVAL;
  Region& r = *it->second;
  drop_parts(r);
  if ((what & IBV_REREG_MR_CHANGE_PD) != 0)
    r.pd = r.mr.pd = pd;
  if ((what & IBV_REREG_MR_CHANGE_ACCESS) != 0)
    r.access = access;
  if ((what & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
    count_live(r, -1);
    r.start = reinterpret_cast<uintptr_t>(start);
    r.iova = r.start;
    r.length = length;
    r.mr.addr = start;
    r.mr.length = length;
    count_live(r, 1);
  }
  return 0;
}

Region* Regions::find_key(uint32_t lkey) const {
  const auto it = by_key_.find(lkey);
  return it == by_key_.end() ? nullptr : it->second;
}

Check Regions::local(const ibv_pd* pd, const ibv_sge& sge, unsigned rights, Span& span) const {
  const std::shared_lock hold(lock_);
  const Region* r = find_key(sge.lkey);
  if (r == nullptr || !same_pd(r->pd, pd))
    return Check::bad_key;
  if (!inside(*r, sge.addr, sge.length))
    return Check::bad_range;
  if ((r->access & rights) != rights)
    return Check::bad_rights;
  span.data = reinterpret_cast<std::byte*>(r->start + (sge.addr - r->iova));
  span.pinned = r->pinned();
  return Check::ok;
}

Check Regions::remote(const ibv_pd* pd, uint32_t key, uint64_t address, uint64_t length,
                      unsigned right, std::byte*& data) const {
  const std::shared_lock hold(lock_);
  const Region* r = find_key(key);
  if (r == nullptr || r->pinned() || !same_pd(r->pd, pd))
    return Check::bad_key;
  if (!inside(*r, address, length))
    return Check::bad_range;
  if ((r->access & right) != right)
    return Check::bad_rights;
  data = reinterpret_cast<std::byte*>(r->start + (address - r->iova));
  return Check::ok;
}

bool Regions::any_remote() const {
  const std::shared_lock hold(lock_);
  return std::any_of(by_mr_.begin(), by_mr_.end(), [](const auto& entry) {
    return !entry.second->pinned() && (entry.second->access & remote_rights) != 0;
  });
}

bool Regions::is_virtual(uint32_t key) const {
  const std::shared_lock hold(lock_);
  const Region* r = find_key(key);
  return r != nullptr && !r->pinned();
}

void Regions::in_child() {
  new (&lock_) std::shared_mutex;
  new (&windows_lock_) std::mutex;
  keys_.in_child();
}

void Regions::close() {
  const std::unique_lock hold(lock_);
  by_key_.clear();
  by_mr_.clear();
  keys_.close();
}

} // namespace adverb::registration
