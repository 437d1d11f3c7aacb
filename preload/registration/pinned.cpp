// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Backend "pinned": the provider's own MR, as without adverb. It is noted only so that the CPU
// paths can check elements that name it.
#include "registration/pinned.h"
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

// What the provider's MR says of itself.
void copy(Region& region) {
  region.pd = region.mr->pd;
  region.start = reinterpret_cast<uintptr_t>(region.mr->addr);
  region.length = region.mr->length;
}

} // namespace

Refusal Pinned::fits(const Wanted& /*wanted*/) const {
  return {};
}

Refusal Pinned::add(const Wanted& wanted, std::unique_ptr<Region>& made) {
  return add(wanted, 0, observe::Counter::regions_pinned, made);
}

Refusal Pinned::add(const Wanted& wanted, unsigned more, observe::Counter counter,
                    std::unique_ptr<Region>& made) {
  auto region = std::make_unique<Region>();
  Wanted asked = wanted;
  asked.access |= more;
  ibv_mr* mr = world_.budgets().register_making_room(
      [&] { return register_as_asked(world_.provider.real(), asked); });
  if (mr == nullptr)
    return {provider::failure(), "the device does not register it"};
  world_.counters.count(counter);
  region->mr = mr;
  region->iova = (wanted.access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : wanted.iova;
  region->access = wanted.access;
  copy(*region);
  made = std::move(region);
  return {};
}

int Pinned::end(Region& region) {
  const provider::Inside inside;
  return world_.provider.real().ibv_dereg_mr(region.mr);
}

int Pinned::change(Region& region, const Change& c, std::unique_lock<SharedMutex>& regions) {
  return change(region, c, c, regions);
}

int Pinned::change(Region& region, const Change& wanted, const Change& asked,
                   std::unique_lock<SharedMutex>& regions) {
  {
    const provider::Inside inside;
    const int rc = world_.provider.real().ibv_rereg_mr(
        region.mr, asked.what, asked.pd, asked.start, asked.length, static_cast<int>(asked.access));
    if (rc != 0)
      return rc;
  }
  regions.lock();
  if (wanted.other_rights())
    region.access = wanted.access;
  if (wanted.moves())
    region.iova = (region.access & IBV_ACCESS_ZERO_BASED) != 0
                      ? 0
                      : reinterpret_cast<uintptr_t>(wanted.start);
  copy(region);
  return 0;
}

std::unique_ptr<Backend> make_pinned(const policy::BackendTraits& traits, const Means& means) {
  return std::make_unique<Pinned>(traits, means.world);
}

} // namespace adverb::registration
