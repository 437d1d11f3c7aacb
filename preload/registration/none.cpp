// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Backend "none": nothing is registered with the device when the program registers. The region has
// one virtual key for lkey and rkey. The program's own operations are copied through staging or get
// a window; what peers do is carried to the responder, which copies.
#include "memory/copy.h"
#include "memory/mappings.h"
#include "registration/backend.h"
#include "registration/grants.h"
#include "registration/windows.h"
#include "world/world.h"

#include <utility>

namespace adverb::registration {

using observe::Counter;
using observe::Gauge;

namespace {

struct Unpinned final : Region {
  ibv_mr own{}; // what the program holds
  bool left = false;
};

// Small elements are copied: below a size that is cheaper than a window.
bool shall_copy(const Use& use, const ibv_sge& sge) {
  return sge.length < use.copy_below && sge.length <= Staging::block_max;
}

class None final : public Backend {
public:
  None(const policy::BackendTraits& traits, const Means& means) : Backend(traits), means_(means) {}

  Refusal fits(const Wanted& wanted) const override {
    // The kernel asks for write permission whenever the device may write.
    const bool writable = (wanted.access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                            IBV_ACCESS_REMOTE_ATOMIC)) != 0;
    switch (
        memory::mapping_of(reinterpret_cast<uintptr_t>(wanted.start), wanted.length, writable)) {
    case memory::Mapping::absent:
      return {EFAULT, "a part of it is not mapped, or not with the rights asked for"};
    case memory::Mapping::foreign:
      return {EOPNOTSUPP, "it is a device's memory or a shared file"};
    case memory::Mapping::ordinary:
      break;
    }
    return {};
  }

  Refusal add(const Wanted& wanted, std::unique_ptr<Region>& made) override {
    auto region = std::make_unique<Unpinned>();
    if (const int rc = means_.keys.take(region->key); rc != 0)
      return {rc, "no virtual key can be reserved"};
    region->mr = &region->own;
    region->own.context = wanted.pd->context;
    set(*region, wanted);
    region->own.lkey = region->own.rkey = region->key->value();
    region->own.handle = UINT32_MAX; // no kernel's: ibv_import_mr finds none by it
    means_.world.counters.count(Counter::regions_unpinned);
    means_.world.counters.count(Counter::region_bytes_unpinned, wanted.length);
    count_live(*region, 1);
    made = std::move(region);
    return {};
  }

  int localize(Region& region, const Use& use, ibv_sge& sge, Hold& hold) override {
    if (check(region, use.pd, sge.addr, sge.length, use.rights) != 0)
      return 0;
    std::byte* start = region.at(sge.addr);
    if (shall_copy(use, sge))
      if (const Block block = use.staging.take(sge.length)) {
        if (use.copy_in && !memory::read(block.data, start, sge.length)) {
          use.staging.give(block);
          return EFAULT;
        }
        means_.world.counters.count(Counter::staging_copies);
        means_.world.counters.count(Counter::staging_bytes, sge.length);
        hold.backend = this;
        hold.block = block;
        if (!use.copy_in) { // to be delivered
          hold.address = sge.addr;
          hold.life = region.life;
          hold.number = region.life->number;
        }
        if (use.receive)
          hold.pages =
              means_.world.staged_receives().add(reinterpret_cast<uintptr_t>(start), sge.length);
        sge.addr = reinterpret_cast<uintptr_t>(block.data);
        sge.lkey = block.lkey;
        return 0;
      }
    if (const int rc = means_.windows.use(region, reinterpret_cast<uintptr_t>(start), sge.length,
                                          (use.rights & IBV_ACCESS_LOCAL_WRITE) != 0, use.receive,
                                          hold.window);
        rc != 0)
      return rc == EFAULT ? EFAULT : ENOMEM;
    hold.backend = this;
    sge.lkey = hold.window->mr->lkey;
    return 0;
  }

  bool copies_out() const noexcept override { return true; }

  void release(Hold& hold) noexcept override {
    if (hold.window != nullptr)
      means_.windows.done(*hold.window);
  }

  int lend(Region& region, uint64_t address, uint64_t length, unsigned access,
           std::shared_ptr<Grant>& grant) override {
    return means_.grants.lend(region, address, length, access, grant);
  }

  int lease(Region& region, uint64_t address, uint64_t length,
            std::shared_ptr<Grant>& grant) override {
    return means_.grants.lease(region, address, length, grant);
  }

  // Windows and grants end here even if work requests still use them: that is what deregistering a
  // region with work outstanding does to a stock program too, and the device reports it the same
  // way.
  int end(Region& region) override {
    if (!static_cast<Unpinned&>(region).left) {
      count_live(region, -1);
      means_.world.counters.count(Counter::regions_deregistered);
    }
    means_.windows.drop(region);
    means_.grants.drop(region);
    return 0;
  }

  int change(Region& region, const Change& c, std::unique_lock<SharedMutex>& regions) override {
    const Wanted now = changed(region, c);
    regions.lock();
    auto& r = static_cast<Unpinned&>(region);
    count_live(r, -1);
    set(r, now);
    count_live(r, 1);
    keep_what_may_be(r, r);
    return 0;
  }

  void leave(Region& region, const Region& now) noexcept override {
    auto& r = static_cast<Unpinned&>(region);
    if (!std::exchange(r.left, true))
      count_live(r, -1);
    keep_what_may_be(r, now);
  }

private:
  void count_live(const Region& r, int64_t sign) {
    means_.world.counters.gauge_add(Gauge::live_regions_unpinned, sign);
    means_.world.counters.gauge_add(Gauge::live_bytes_unpinned,
                                    sign * static_cast<int64_t>(r.length));
  }

  static void set(Unpinned& r, const Wanted& wanted) {
    r.pd = r.own.pd = wanted.pd;
    r.start = reinterpret_cast<uintptr_t>(wanted.start);
    r.own.addr = wanted.start;
    r.length = r.own.length = wanted.length;
    r.iova = wanted.iova;
    r.access = wanted.access;
  }

  void keep_what_may_be(Region& region, const Region& now) noexcept {
    means_.windows.changed(region, now);
    means_.grants.changed(region, now);
  }

  const Means means_;
};

} // namespace

std::unique_ptr<Backend> make_none(const policy::BackendTraits& traits, const Means& means) {
  return std::make_unique<None>(traits, means);
}

// The same, but that its row leases.
std::unique_ptr<Backend> make_elastic(const policy::BackendTraits& traits, const Means& means) {
  return std::make_unique<None>(traits, means);
}

} // namespace adverb::registration
