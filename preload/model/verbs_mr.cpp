// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Memory regions: the policy says which backend, and that does the rest.
#include "model/context.h"
#include "model/cq.h"
#include "model/no_leases.h"
#include "model/objects.h"
#include "model/verbs.h"
#include "transfer/target.h"

#include <cerrno>
#include <chrono>

namespace adverb::model {

using observe::Counter;
using Verb = registration::Wanted::Verb;

namespace {

// Arguments, policy, backend: what the chosen backend cannot take the stock one gets. errno, if
// nobody may have it.
int choose(Context& context, const registration::Wanted& wanted, registration::Backend*& backend) {
  World& world = context.world();
  auto& regions = context.regions();
  backend = &regions.backend(policy::stock_backend());
  if (!registration::is_plain(wanted) || context.pins_all())
    return 0;
  registration::Backend& chosen =
      regions.backend(world.policy().region({context.device(), wanted.length, wanted.access}));
  const registration::Refusal unfit = chosen.fits(wanted);
  if (!unfit) {
    backend = &chosen;
  } else if (unfit.error == EOPNOTSUPP || unfit.error == EFAULT) {
    // What is not mapped may all the same be memory that the device's driver knows of, a GPU's for
    // example; else the provider says EFAULT.
    world.counters.count(Counter::regions_provider);
    world.log.debug("a region of {} bytes cannot be registered \"{}\": {}; it is left to {}",
                    wanted.length, chosen.traits().name, unfit.why, context.device());
  } else {
    world.counters.count(Counter::regions_refused);
    return unfit.error;
  }
  return 0;
}

// Peers reach the region's memory through the device from now on, and may overwrite what has come.
// (What comes in staging later, of receives that were posted before, it cannot be put in order
// with: nobody but the device knows which came first.)
void settle_messages(World& world, const ibv_mr& mr) {
  const auto* const staged = world.parts.staged_receives.made();
  if (staged != nullptr && staged->meet(reinterpret_cast<uintptr_t>(mr.addr), mr.length))
    for (const auto& cq : world.objects().cqs.all())
      cq->settle();
}

ibv_mr* reg(World& world, const registration::Wanted& wanted) {
  const auto context = world.objects().managed(wanted.pd->context);
  if (!context)
    return registration::register_as_asked(world.provider.real(), wanted);
  auto& regions = context->regions();
  registration::Backend& stock = regions.backend(policy::stock_backend());
  registration::Backend* backend = nullptr;
  if (const int why = choose(*context, wanted, backend); why != 0) {
    errno = why;
    return nullptr;
  }
  ibv_mr* mr = nullptr;
  auto refusal = regions.add(*backend, wanted, mr);
  if (refusal && backend != &stock) {
    world.log.warn("{} on {} (errno {}); a region of {} bytes is pinned instead", refusal.why,
                   context->device(), refusal.error, wanted.length);
    refusal = regions.add(stock, wanted, mr);
  }
  if (refusal)
    errno = refusal.error;
  else
    settle_messages(world, *mr);
  if (!refusal && regions.is_reserved(mr->lkey))
    context->find_critical_size(wanted.pd);
  return mr;
}

} // namespace

ibv_mr* Verbs::reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  return reg(world, {pd, addr, length, reinterpret_cast<uintptr_t>(addr),
                     static_cast<unsigned>(access), Verb::reg_mr});
}

ibv_mr* Verbs::reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access) {
  return reg(world, {pd, addr, length, iova, static_cast<unsigned>(access), Verb::reg_mr_iova});
}

ibv_mr* Verbs::reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova,
                            unsigned int access) {
  return reg(world, {pd, addr, length, iova, access, Verb::reg_mr_iova2});
}

int Verbs::dereg_mr(ibv_mr* mr) {
  if (const auto context = world.objects().known(mr->context)) {
    const auto ended = context->regions().remove(mr);
    if (ended.key) {
      // Replies and peers' requests that were copying are done after this.
      context->barrier({.regions = &context->regions(), .key = ended.key->value()});
      world.targets().key_ends().ended(ended.key);
    }
    if (ended.known)
      return ended.rc;
  }
  const provider::Inside inside;
  return world.provider.real().ibv_dereg_mr(mr);
}

int Verbs::rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, size_t length, int access) {
  if (const auto context = world.objects().known(mr->context)) {
    // It has the same key afterwards, under which peers may go on, but not by what they had of it.
    const auto start = reinterpret_cast<uintptr_t>(mr->addr);
    const NoLeases while_it_changes(world, {start, start + mr->length}, std::chrono::seconds(1));
    const auto ended = context->regions().change(
        mr, {flags, pd, addr, length, static_cast<unsigned>(access)},
        [&](const auto& wanted, auto*& backend) { return choose(*context, wanted, backend); });
    if (ended.key) {
      context->barrier({.regions = &context->regions(), .key = ended.key->value()});
      if (!context->regions().is_virtual(ended.key->value())) // it has the device's own from now on
        world.targets().key_ends().ended(ended.key);
    }
    if (ended.known && ended.rc == 0)
      settle_messages(world, *mr);
    if (ended.known)
      return ended.rc;
  }
  const provider::Inside inside;
  return world.provider.real().ibv_rereg_mr(mr, flags, pd, addr, length, access);
}

ibv_mr* Verbs::reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                             int access) {
  world.counters.count(Counter::regions_provider);
  const provider::Inside inside;
  return world.provider.real().ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access);
}

// Advice is a hint; on a region that is not pinned there is nothing to prefetch into.
int Verbs::advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* sges,
                     uint32_t count) {
  if (const auto context = world.objects().managed(pd->context)) {
    bool all_virtual = count != 0;
    for (uint32_t i = 0; i < count; ++i)
      all_virtual &= context->regions().is_virtual(sges[i].lkey);
    if (all_virtual)
      return 0;
  }
  const auto function = world.provider.ops(pd->context).advise_mr;
  if (function == nullptr)
    return EOPNOTSUPP;
  const provider::Inside inside;
  return function(pd, advice, flags, sges, count);
}

} // namespace adverb::model
