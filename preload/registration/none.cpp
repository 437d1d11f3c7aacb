// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Backend "none": nothing is registered with the device when the program registers. The region has
// one virtual key for lkey and rkey. The program's own operations are copied through staging or get
// a window; what peers do is carried to the responder, which copies.
#include "memory/copy.h"
#include "registration/backend.h"
#include "registration/copied.h"
#include "registration/grants.h"
#include "registration/staged_receives.h"
#include "registration/views.h"
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

class None final : public Backend {
public:
  None(const policy::BackendTraits& traits, const Means& means) : Backend(traits), means_(means) {}

  Refusal fits(const Wanted& wanted) const override { return follows_addresses(wanted); }

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
    const Windows::Usage usage{reinterpret_cast<uintptr_t>(start),
                               reinterpret_cast<uintptr_t>(start) + sge.length,
                               (use.rights & IBV_ACCESS_LOCAL_WRITE) != 0, use.receive};
    hold.window = nullptr;
    const bool behind = is_behind(use, usage);
    const bool before = use.behind != Behind::staged && is_before(use, usage);
    if (behind || (!before && use.copy_below != 0 && shall_copy(region, use, usage, hold.window))) {
      if (use.behind == Behind::ask && behind && (before || !may_follow(use, usage)))
        return EBUSY;
      if (const Block block = use.staging.take(sge.length)) {
        const ibv_sge posted = sge;
        if (const int rc = stage(region, use, block, sge, hold); rc != 0)
          return rc;
        if (use.behind == Behind::staged || !is_before(use, usage)) [[likely]]
          return 0;
        // Another thread has posted one meanwhile.
        give_back(use, hold);
        sge = posted;
        if (use.behind == Behind::ask)
          return EBUSY;
      } else if (behind) {
        return use.behind == Behind::ask ? EBUSY : ENOMEM;
      }
    }
    return place(region, use, usage, sge, hold);
  }

  bool copies_out() const noexcept override { return true; }

  void release(Hold& hold) noexcept override {
    if (hold.staged_receive())
      means_.world.staged_receives().remove(hold.place);
    else if (hold.place.bytes != 0)
      means_.world.staged_receives().placed().remove(hold.place);
    if (hold.window != nullptr)
      means_.windows.done(*hold.window);
  }

  int lend(Region& region, uint64_t address, uint64_t length, unsigned access,
           std::shared_ptr<Grant>& grant) override {
    return means_.grants.lend(region, address, length, access, grant);
  }

  int lease(Region& region, uint64_t address, uint64_t length,
            std::shared_ptr<Grant>& grant) override {
    const int rc = means_.grants.lease(region, address, length, grant);
    if (rc == 0)
      means_.windows.make_way();
    return rc;
  }

  int view(Region& region, uint64_t address, uint64_t length,
           std::shared_ptr<Grant>& grant) override {
    return means_.views.lend(region, address, length, grant);
  }

  void served(const Region& region, uint64_t address, uint64_t length) noexcept override {
    means_.views.show(region, address, length);
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
    means_.views.drop(region);
    return 0;
  }

  int change(Region& region, const Change& c, std::unique_lock<SharedMutex>& regions) override {
    const Wanted now = changed(region, c);
    regions.lock();
    means_.views.changed(region);
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
    means_.views.changed(r);
    keep_what_may_be(r, now);
  }

private:
  // Whether a message that stands in staging may be for the same bytes, and would come to its place
  // after this one if that did not stand there, too.
  bool is_behind(const Use& use, const Windows::Usage& usage) const noexcept {
    if (use.behind != Behind::ask)
      return use.behind == Behind::staged;
    const StagedReceives* const staged = means_.world.parts.staged_receives.made();
    return staged != nullptr && staged->meet(usage.from, usage.to - usage.from);
  }
  // Whether the device may put one of another queue pair there, posted before, which is sent after
  // it and would then be there before it if it stood in staging.
  bool is_before(const Use& use, const Windows::Usage& usage) const noexcept {
    if (!use.receive)
      return false;
    const StagedReceives* const staged = means_.world.parts.staged_receives.made();
    return staged != nullptr &&
           staged->placed().others(usage.from, usage.to - usage.from, use.queue);
  }
  // It may stand there without anybody being asked: it is small, and nobody wants it in place.
  static bool may_follow(const Use& use, const Windows::Usage& usage) noexcept {
    return use.copy_below != 0 && usage.to - usage.from <= Staging::block_max;
  }

  int stage(Region& region, const Use& use, const Block& block, ibv_sge& sge, Hold& hold) {
    std::byte* const start = region.at(sge.addr);
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
    if (use.receive) {
      hold.place = {reinterpret_cast<uintptr_t>(start), sge.length};
      means_.world.staged_receives().add(hold.place);
    }
    sge.addr = reinterpret_cast<uintptr_t>(block.data);
    sge.lkey = block.lkey;
    return 0;
  }

  // By a window, which there may be already.
  int place(Region& region, const Use& use, const Windows::Usage& usage, ibv_sge& sge, Hold& hold) {
    if (hold.window == nullptr)
      if (const int rc = means_.windows.use(region, usage, hold.window); rc != 0)
        return rc == EFAULT ? EFAULT : ENOMEM;
    hold.backend = this;
    if (use.receive) {
      StagedReceives& staged = means_.world.staged_receives();
      hold.place = {usage.from, usage.to - usage.from};
      staged.placed().add(hold.place, use.queue);
      if (use.behind == Behind::ask && staged.meet(usage.from, usage.to - usage.from)) {
        give_back(use, hold);
        return EBUSY;
      }
    }
    sge.lkey = hold.window->mr->lkey;
    return 0;
  }

  void give_back(const Use& use, Hold& hold) noexcept {
    if (hold.block)
      use.staging.give(hold.block);
    release(hold);
    hold = {};
  }

  // Small elements are copied: below a size that is always cheaper. Larger ones are, too, until
  // they have a window, which is used then (`window`).
  bool shall_copy(Region& region, const Use& use, const Windows::Usage& usage, Window*& window) {
    const uint64_t length = usage.to - usage.from;
    if (length < use.copy_below || length > Staging::block_max)
      return length <= Staging::block_max;
    if (use.receive)
      return shall_copy_receive(region, usage, window);
    window = means_.windows.use_known(region, usage);
    return window == nullptr && !means_.copied.window_is_due(region, usage.from, length);
  }

  // Receives share windows. They are long under way: what is beyond the budget is copied, if it is
  // little.
  bool shall_copy_receive(Region& region, Windows::Usage usage, Window*& window) {
    constexpr uint64_t little = 16 << 10;
    usage.optional = true;
    return usage.to - usage.from <= little && means_.windows.use(region, usage, window) != 0;
  }

  void count_live(const Region& r, int64_t sign) {
    means_.world.counters.gauge_add(Gauge::live_regions_unpinned, sign);
    means_.world.counters.gauge_add(Gauge::live_bytes_unpinned,
                                    sign * static_cast<int64_t>(r.length));
  }

  static void set(Unpinned& r, const Wanted& wanted) {
    r.pd = r.own.pd = wanted.pd;
    r.start = reinterpret_cast<uintptr_t>(wanted.start);
    r.page.store(0);
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

// That, and its row has views.
std::unique_ptr<Backend> make_np(const policy::BackendTraits& traits, const Means& means) {
  return std::make_unique<None>(traits, means);
}

// That, where views can be had: Views tells of it without a warning if they cannot.
std::unique_ptr<Backend> make_auto(const policy::BackendTraits& traits, const Means& means) {
  return std::make_unique<None>(traits, means);
}

} // namespace adverb::registration
