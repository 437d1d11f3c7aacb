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

namespace adverb::registration {

using observe::Counter;
using observe::Gauge;

namespace {

struct Unpinned final : Region {
  ibv_mr own{}; // what the program holds
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
    region->pd = wanted.pd;
    region->start = reinterpret_cast<uintptr_t>(wanted.start);
    region->iova = wanted.iova;
    region->length = wanted.length;
    region->access = wanted.access;
    region->own.context = wanted.pd->context;
    region->own.pd = wanted.pd;
    region->own.addr = wanted.start;
    region->own.length = wanted.length;
    region->own.lkey = region->own.rkey = region->key->value();
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
          hold.program = start;
          hold.life = region.life;
          hold.number = *region.life;
        }
        sge.addr = reinterpret_cast<uintptr_t>(block.data);
        sge.lkey = block.lkey;
        return 0;
      }
    if (const int rc = means_.windows.use(region, reinterpret_cast<uintptr_t>(start), sge.length,
                                          use.receive, hold.window);
        rc != 0)
      return rc == EFAULT ? EFAULT : ENOMEM;
    hold.backend = this;
    sge.lkey = hold.window->mr->lkey;
    return 0;
  }

  void release(Hold& hold) noexcept override {
    if (hold.window != nullptr)
      means_.windows.done(*hold.window);
  }

  int lend(Region& region, uint64_t address, uint64_t length, unsigned access,
           std::shared_ptr<Grant>& grant) override {
    return means_.grants.lend(*this, region, address, length, access, grant);
  }

  void take_back(const std::shared_ptr<Grant>& grant) noexcept override {
    means_.grants.take_back(grant);
  }

  // Windows and grants end here even if work requests still use them: that is what deregistering a
  // region with work outstanding does to a stock program too, and the device reports it the same
  // way.
  int end(Region& region) override {
    count_live(region, -1);
    means_.world.counters.count(Counter::regions_deregistered);
    drop_parts(region);
    return 0;
  }

  int change(Region& region, const Change& c, std::unique_lock<SharedMutex>& regions) override {
    constexpr int all =
        IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    const bool moves = (c.what & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
    const bool other_pd = (c.what & IBV_REREG_MR_CHANGE_PD) != 0;
    const bool other_rights = (c.what & IBV_REREG_MR_CHANGE_ACCESS) != 0;
    if (c.what == 0 || (c.what & ~all) != 0 || (other_rights && !are_plain_rights(c.access)) ||
        (moves && (c.start == nullptr || c.length == 0)) || (other_pd && c.pd == nullptr)) {
      errno = EINVAL;
      return IBV_REREG_MR_ERR_INPUT;
    }
    if (moves && memory::mapping_of(reinterpret_cast<uintptr_t>(c.start), c.length, false) !=
                     memory::Mapping::ordinary) {
      errno = EFAULT;
      return IBV_REREG_MR_ERR_CMD;
    }
    regions.lock();
    auto& r = static_cast<Unpinned&>(region);
    drop_parts(r);
    if (other_pd)
      r.pd = r.own.pd = c.pd;
    if (other_rights)
      r.access = c.access;
    if (moves) {
      count_live(r, -1);
      r.start = reinterpret_cast<uintptr_t>(c.start);
      r.iova = r.start;
      r.length = c.length;
      r.own.addr = c.start;
      r.own.length = c.length;
      count_live(r, 1);
    }
    return 0;
  }

private:
  void count_live(const Region& r, int64_t sign) {
    means_.world.counters.gauge_add(Gauge::live_regions_unpinned, sign);
    means_.world.counters.gauge_add(Gauge::live_bytes_unpinned,
                                    sign * static_cast<int64_t>(r.length));
  }

  void drop_parts(Region& region) noexcept {
    means_.windows.drop(region);
    means_.grants.drop(region);
  }

  const Means means_;
};

} // namespace

std::unique_ptr<Backend> make_none(const policy::BackendTraits& traits, const Means& means) {
  return std::make_unique<None>(traits, means);
}

} // namespace adverb::registration
