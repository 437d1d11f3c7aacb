// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A backend of a test's own: a small region is registered as a whole at its first use and stays so
// until it ends. It comes in by this file, its row and a line of meson.build, and nothing else.
#include "registration/backend.h"
#include "world/world.h"

#include <mutex>

namespace adverb::registration {
namespace {

constexpr size_t small = 64 * 1024;

struct ToyRegion final : Region {
  ibv_mr own{};
  adverb::Mutex lock;
  ibv_mr* whole = nullptr; // once it has been used
};

class Toy final : public Backend {
public:
  Toy(const policy::BackendTraits& traits, const Means& means) : Backend(traits), means_(means) {}

  Refusal fits(const Wanted& wanted) const override {
    if (wanted.length > small)
      return {EOPNOTSUPP, "it is too large to be played with"};
    return {};
  }

  Refusal add(const Wanted& wanted, std::unique_ptr<Region>& made) override {
    auto region = std::make_unique<ToyRegion>();
    if (const int rc = means_.keys.take(region->key); rc != 0)
      return {rc, "there is no key for a toy"};
    region->mr = &region->own;
    region->pd = region->own.pd = wanted.pd;
    region->start = reinterpret_cast<uintptr_t>(wanted.start);
    region->iova = wanted.iova;
    region->length = region->own.length = wanted.length;
    region->access = wanted.access;
    region->own.context = wanted.pd->context;
    region->own.addr = wanted.start;
    region->own.lkey = region->own.rkey = region->key->value();
    made = std::move(region);
    return {};
  }

  int localize(Region& region, const Use& use, ibv_sge& sge, Hold& /*hold*/) override {
    if (check(region, use.pd, sge.addr, sge.length, use.rights) != 0)
      return 0;
    auto& toy = static_cast<ToyRegion&>(region);
    const std::lock_guard hold(toy.lock);
    if (toy.whole == nullptr) {
      const provider::Inside inside;
      toy.whole = means_.world.provider.real().ibv_reg_mr_iova(
          toy.pd, reinterpret_cast<void*>(toy.start), toy.length, toy.iova,
          static_cast<int>(toy.access & IBV_ACCESS_LOCAL_WRITE));
      if (toy.whole == nullptr)
        return ENOMEM;
    }
    sge.lkey = toy.whole->lkey;
    return 0;
  }

  int end(Region& region) override {
    deregister(static_cast<ToyRegion&>(region));
    return 0;
  }

  int change(Region& region, const Change& c,
             std::unique_lock<adverb::SharedMutex>& regions) override {
    if (c.what != IBV_REREG_MR_CHANGE_ACCESS) {
      errno = EOPNOTSUPP;
      return IBV_REREG_MR_ERR_INPUT;
    }
    regions.lock();
    deregister(static_cast<ToyRegion&>(region));
    region.access = c.access;
    return 0;
  }

private:
  void deregister(ToyRegion& region) {
    if (region.whole == nullptr)
      return;
    const provider::Inside inside;
    means_.world.provider.real().ibv_dereg_mr(region.whole);
    region.whole = nullptr;
  }

  const Means means_;
};

} // namespace

std::unique_ptr<Backend> make_toy(const policy::BackendTraits& traits, const Means& means) {
  return std::make_unique<Toy>(traits, means);
}

} // namespace adverb::registration
