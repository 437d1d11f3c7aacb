// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Backend "pinned": the provider's own MR, as without adverb. It is noted only so that the CPU
// paths can check elements that name it.
#include "registration/backend.h"
#include "registration/budget.h"
#include "world/world.h"

namespace adverb::registration {

ibv_mr* register_as_asked(const provider::Real& real, const Wanted& w) {
  const provider::Inside inside;
  switch (w.verb) {
  case Wanted::Verb::reg_mr_iova:
    return real.ibv_reg_mr_iova(w.pd, w.start, w.length, w.iova, static_cast<int>(w.access));
  case Wanted::Verb::reg_mr_iova2:
    return real.ibv_reg_mr_iova2(w.pd, w.start, w.length, w.iova, w.access);
  case Wanted::Verb::reg_mr:
    break;
  }
  return real.ibv_reg_mr(w.pd, w.start, w.length, static_cast<int>(w.access));
}

namespace {

class Pinned final : public Backend {
public:
  Pinned(const policy::BackendTraits& traits, World& world) : Backend(traits), world_(world) {}

  Refusal fits(const Wanted& /*wanted*/) const override { return {}; }

  Refusal add(const Wanted& wanted, std::unique_ptr<Region>& made) override {
    auto region = std::make_unique<Region>();
    ibv_mr* mr = world_.budgets().register_making_room(
        [&] { return register_as_asked(world_.provider.real(), wanted); });
    if (mr == nullptr)
      return {provider::failure(), "the device does not register it"};
    world_.counters.count(observe::Counter::regions_pinned);
    region->mr = mr;
    region->iova = (wanted.access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : wanted.iova;
    region->access = wanted.access;
    copy(*region);
    made = std::move(region);
    return {};
  }

  int end(Region& region) override {
    const provider::Inside inside;
    return world_.provider.real().ibv_dereg_mr(region.mr);
  }

  int change(Region& region, const Change& c, std::unique_lock<SharedMutex>& regions) override {
    {
      const provider::Inside inside;
      const int rc = world_.provider.real().ibv_rereg_mr(region.mr, c.what, c.pd, c.start, c.length,
                                                         static_cast<int>(c.access));
      if (rc != 0)
        return rc;
    }
    regions.lock();
    if ((c.what & IBV_REREG_MR_CHANGE_ACCESS) != 0)
      region.access = c.access;
    if ((c.what & IBV_REREG_MR_CHANGE_TRANSLATION) != 0)
      region.iova =
          (region.access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : reinterpret_cast<uintptr_t>(c.start);
    copy(region);
    return 0;
  }

private:
  // What the provider's MR says of itself.
  static void copy(Region& region) {
    region.pd = region.mr->pd;
    region.start = reinterpret_cast<uintptr_t>(region.mr->addr);
    region.length = region.mr->length;
  }

  World& world_;
};

} // namespace

std::unique_ptr<Backend> make_pinned(const policy::BackendTraits& traits, const Means& means) {
  return std::make_unique<Pinned>(traits, means.world);
}

} // namespace adverb::registration
