// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The really registered parts of unpinned regions: windows for the program's own operations,
// grants for peers, and the choice between copying into staging and using a window.
#include "memory/copy.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "provider/real.h"
#include "registration/budget.h"
#include "registration/regions.h"

#include <algorithm>
#include <cerrno>
#include <mutex>

namespace adverb::registration {

using observe::Counter;
using observe::Gauge;

namespace {

constexpr uintptr_t page = 4096;

// The pages that [start, end) touches, clipped to the region.
std::pair<uintptr_t, uintptr_t> window_bounds(const Region& r, uintptr_t start, uintptr_t end) {
  return {std::max(r.start, start & ~(page - 1)),
          std::min<uintptr_t>(r.start + r.length, (end + page - 1) & ~(page - 1))};
}

Gauge forced_gauge(const Window& window) {
  return window.receive ? Gauge::recv_forced_bytes : Gauge::send_forced_bytes;
}

void forget_forced(Window& window) {
  observe::gauge_add(forced_gauge(window), -static_cast<int64_t>(window.forced_bytes));
  window.forced_bytes = 0;
}

} // namespace

void Regions::destroy(Window& window) noexcept {
  if (window.mr == nullptr)
    return;
  const provider::Inside inside;
  provider::real().ibv_dereg_mr(window.mr);
  window.mr = nullptr;
  const auto bytes = window.end - window.start;
  window_bytes_ -= bytes;
  observe::gauge_add(Gauge::pinned_bytes, -static_cast<int64_t>(bytes));
  forget_forced(window);
}

// Gives idle windows back, least recently used first, until at most `limit` bytes are registered.
void Regions::shrink_idle(uint64_t limit) {
  while (window_bytes_ > limit && !idle_.empty()) {
    Window* oldest = idle_.front();
    idle_.pop_front();
    destroy(*oldest);
    observe::count(Counter::windows_evicted);
    auto& of_region = oldest->region->windows;
    std::erase_if(of_region, [&](const auto& w) { return w.get() == oldest; });
  }
}

Window* Regions::window_for(Region& region, uintptr_t start, size_t length, bool receive,
                            int& why) {
  for (auto& window : region.windows) {
    if (window->start > start || window->end < start + length)
      continue;
    if (window->users++ == 0)
      idle_.erase(window->idle);
    observe::count(Counter::windows_cached_hits);
    return window.get();
  }
  const auto [from, to] = window_bounds(region, start, start + length);
  const uint64_t bytes = to - from;
  const uint64_t budget = window_bytes();
  shrink_idle(budget > bytes ? budget - bytes : 0);
  auto window = std::make_unique<Window>();
  window->start = from;
  window->end = to;
  window->region = &region;
  const provider::Inside inside;
  const auto& real = provider::real();
  const auto address = region.iova + (from - region.start);
  const int access = static_cast<int>(region.access & IBV_ACCESS_LOCAL_WRITE);
  auto* at = reinterpret_cast<void*>(from);
  window->mr = address == from ? real.ibv_reg_mr(region.pd, at, bytes, access)
                               : real.ibv_reg_mr_iova(region.pd, at, bytes, address, access);
  if (window->mr == nullptr) {
    why = errno;
    return nullptr;
  }
  window_bytes_ += bytes;
  observe::count(Counter::windows_registered);
  observe::gauge_add(Gauge::pinned_bytes, static_cast<int64_t>(bytes));
  // A receive must be backed before it is posted, whatever the budget says. So must a request that
  // is sent: making it wait for one of another queue pair could wait for a message that only comes
  // when this one has gone. Say how much that was.
  if (window_bytes_ > budget) {
    window->forced_bytes = std::min<uint64_t>(bytes, window_bytes_ - budget);
    window->receive = receive;
    observe::gauge_add(forced_gauge(*window), static_cast<int64_t>(window->forced_bytes));
    observe::gauge_raise(Gauge::forced_peak_bytes, observe::value(Gauge::recv_forced_bytes) +
                                                       observe::value(Gauge::send_forced_bytes));
  }
  window->users = 1;
  region.windows.push_back(std::move(window));
  return region.windows.back().get();
}

int Regions::localize(const ibv_pd* pd, Staging& staging, uint64_t copy_below, unsigned rights,
                      bool copy_in, bool receive, ibv_sge& sge, Hold& hold) {
  const std::shared_lock regions(lock_);
  Region* region = find_key(sge.lkey);
  if (region == nullptr || region->pinned() || !same_pd(region->pd, pd) ||
      (region->access & rights) != rights || sge.addr < region->iova ||
      sge.length > region->length || sge.addr - region->iova > region->length - sge.length)
    return 0; // the device judges the key as it stands
  const uintptr_t start = region->start + (sge.addr - region->iova);
  if (sge.length < copy_below && sge.length <= Staging::block_max) {
    if (Block block = staging.take(sge.length)) {
      if (copy_in && !memory::read(block.data, reinterpret_cast<void*>(start), sge.length)) {
        staging.give(block);
        return EFAULT;
      }
      observe::count(Counter::staging_copies);
      observe::count(Counter::staging_bytes, sge.length);
      hold.block = block;
      hold.alive = region->alive;
      hold.program = reinterpret_cast<std::byte*>(start);
      sge.addr = reinterpret_cast<uintptr_t>(block.data);
      sge.lkey = block.lkey;
      return 0;
    }
  }
  const std::lock_guard windows(windows_lock_);
  int why = 0;
  Window* window = window_for(*region, start, sge.length, receive, why);
  if (window == nullptr)
    return why == EFAULT ? EFAULT : ENOMEM;
  hold.window = window;
  sge.lkey = window->mr->lkey;
  return 0;
}

void Regions::release(Staging& staging, Hold& hold) noexcept {
  if (hold.block)
    staging.give(hold.block);
  if (Window* window = hold.window; window != nullptr) {
    const std::lock_guard windows(windows_lock_);
    if (--window->users == 0) {
      if (window->region == nullptr) {
        std::erase_if(orphans_, [&](const auto& w) { return w.get() == window; });
      } else {
        forget_forced(*window);
        idle_.push_back(window);
        window->idle = std::prev(idle_.end());
        shrink_idle(window_bytes());
      }
    }
  }
  hold = {};
}

bool Regions::deliver(const Hold& hold, size_t bytes) const {
  const std::shared_lock regions(lock_);
  return *hold.alive && memory::write(hold.program, hold.block.data, bytes);
}

std::shared_ptr<Grant> Regions::grant(uint32_t key, uint64_t address, uint64_t length,
                                      unsigned access) {
  const std::shared_lock regions(lock_);
  Region* region = find_key(key);
  if (region == nullptr || region->pinned() || address < region->iova || length > region->length ||
      address - region->iova > region->length - length)
    return nullptr;
  const uintptr_t start = region->start + (address - region->iova);
  const auto [from, to] = window_bounds(*region, start, start + length);
  const provider::Inside inside;
  ibv_mr* mr = provider::real().ibv_reg_mr_iova(
      region->pd, reinterpret_cast<void*>(from), to - from, region->iova + (from - region->start),
      static_cast<int>(access | (region->access & IBV_ACCESS_LOCAL_WRITE)));
  if (mr == nullptr) {
    if (observe::log_every("grant", 10))
      observe::log_warn("cannot register {} bytes for a peer's operation: errno {}; raise "
                        "RLIMIT_MEMLOCK or pin the region by policy",
                        to - from, errno);
    return nullptr;
  }
  observe::gauge_add(Gauge::pinned_bytes, static_cast<int64_t>(mr->length));
  observe::count(Counter::responder_grants);
  auto grant = std::make_shared<Grant>();
  grant->key = region->key;
  grant->mr = mr;
  grant->region = region;
  grant->start = region->iova + (from - region->start);
  const std::lock_guard windows(windows_lock_);
  region->grants.push_back(grant);
  return grant;
}

void Regions::revoke(const std::shared_ptr<Grant>& grant) noexcept {
  const std::shared_lock regions(lock_);
  const std::lock_guard windows(windows_lock_);
  if (grant->mr == nullptr)
    return;
  const provider::Inside inside;
  observe::gauge_add(Gauge::pinned_bytes, -static_cast<int64_t>(grant->mr->length));
  provider::real().ibv_dereg_mr(grant->mr);
  grant->mr = nullptr;
  std::erase(grant->region->grants, grant);
  grant->region = nullptr;
}

} // namespace adverb::registration
