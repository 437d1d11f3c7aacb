// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Memory regions: which backend, the checks stock would make, deregistration.
#include "memory/mappings.h"
#include "model/context.h"
#include "model/verbs.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "policy/policy.h"
#include "provider/ops.h"
#include "provider/real.h"

#include <cerrno>

namespace adverb::model {

using observe::Counter;

namespace {

constexpr unsigned remote_rights =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr unsigned known_rights =
    IBV_ACCESS_LOCAL_WRITE | remote_rights | IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING;

// Rights that only a real MR can carry (windows bound to it, on-demand paging asked for by the
// program, persistence, zero-based addresses), rights the device would refuse, and empty regions
// are the provider's to judge.
bool may_be_unpinned(const void* start, size_t length, unsigned access) {
  // A range that runs over the end of the address space, by bytes or by pages, is EINVAL in stock.
  const auto first = reinterpret_cast<uintptr_t>(start);
  if (first + length < first || ((first + length + 4095) & ~uintptr_t{4095}) < first)
    return false;
  if ((access & ~known_rights) != 0 || length == 0)
    return false;
  const unsigned needs_local = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  return (access & needs_local) == 0 || (access & IBV_ACCESS_LOCAL_WRITE) != 0;
}

// Registers by policy. `stock` makes the provider's MR.
template <typename Stock>
ibv_mr* reg(ibv_pd* pd, void* start, size_t length, uint64_t iova, unsigned access, Stock&& stock) {
  const auto context = find(pd->context);
  if (!context) {
    const provider::Inside inside;
    return stock();
  }
  const auto& policy = policy::current();
  if (may_be_unpinned(start, length, access) &&
      policy.region({context->device(), length, access}) == policy::Backend::none) {
    // The kernel asks for write permission whenever the device may write.
    const bool writable =
        (access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) !=
        0;
    switch (memory::mapping_of(reinterpret_cast<uintptr_t>(start), length, writable)) {
    case memory::Mapping::absent:
      observe::count(Counter::regions_refused);
      errno = EFAULT;
      return nullptr;
    case memory::Mapping::foreign:
      observe::count(Counter::regions_provider);
      break;
    case memory::Mapping::ordinary:
      if (ibv_mr* mr = context->regions().add_unpinned(pd, start, length, iova, access))
        return mr;
      observe::log_warn("no virtual key can be reserved on {} (errno {}); a region of {} bytes is "
                        "pinned instead",
                        context->device(), errno, length);
      break;
    }
  }
  ibv_mr* mr = nullptr;
  {
    const provider::Inside inside;
    mr = stock();
  }
  if (mr != nullptr) {
    observe::count(Counter::regions_pinned);
    context->regions().add_pinned(mr, iova, access);
  }
  return mr;
}

} // namespace

ibv_mr* reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  return reg(pd, addr, length, reinterpret_cast<uintptr_t>(addr), static_cast<unsigned>(access),
             [&] { return provider::real().ibv_reg_mr(pd, addr, length, access); });
}

ibv_mr* reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access) {
  return reg(pd, addr, length, iova, static_cast<unsigned>(access),
             [&] { return provider::real().ibv_reg_mr_iova(pd, addr, length, iova, access); });
}

ibv_mr* reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned int access) {
  return reg(pd, addr, length, iova, access,
             [&] { return provider::real().ibv_reg_mr_iova2(pd, addr, length, iova, access); });
}

int dereg_mr(ibv_mr* mr) {
  if (const auto context = find_any(mr->context)) {
    if (const auto region = context->regions().remove(mr)) {
      if (!region->pinned()) {
        // Replies and peers' requests that were copying when the key died are done after this.
        context->barrier();
        return 0;
      }
      const provider::Inside inside;
      const int rc = provider::real().ibv_dereg_mr(mr);
      if (rc != 0)
        context->regions().add_pinned(mr, region->iova, region->access);
      return rc;
    }
  }
  const provider::Inside inside;
  return provider::real().ibv_dereg_mr(mr);
}

int rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, size_t length, int access) {
  const auto context = find_any(mr->context);
  if (!context || !context->regions().is_unpinned(mr)) {
    const provider::Inside inside;
    const int rc = provider::real().ibv_rereg_mr(mr, flags, pd, addr, length, access);
    if (rc == 0 && context) {
      if (const auto old = context->regions().remove(mr)) {
        const bool changed = (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0;
        const bool moved = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
        context->regions().add_pinned(mr, moved ? reinterpret_cast<uintptr_t>(addr) : old->iova,
                                      changed ? static_cast<unsigned>(access) : old->access);
      }
    }
    return rc;
  }
  constexpr int all =
      IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
  const bool rights_ok = (flags & IBV_REREG_MR_CHANGE_ACCESS) == 0 ||
                         may_be_unpinned(nullptr, 1, static_cast<unsigned>(access));
  const bool range_ok =
      (flags & IBV_REREG_MR_CHANGE_TRANSLATION) == 0 || (addr != nullptr && length != 0);
  const bool pd_ok = (flags & IBV_REREG_MR_CHANGE_PD) == 0 || pd != nullptr;
  if (flags == 0 || (flags & ~all) != 0 || !rights_ok || !range_ok || !pd_ok) {
    errno = EINVAL;
    return IBV_REREG_MR_ERR_INPUT;
  }
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0 &&
      memory::mapping_of(reinterpret_cast<uintptr_t>(addr), length, false) !=
          memory::Mapping::ordinary) {
    errno = EFAULT;
    return IBV_REREG_MR_ERR_CMD;
  }
  const int rc =
      context->regions().change(mr, flags, pd, addr, length, static_cast<unsigned>(access));
  context->barrier();
  if (rc != 0) {
    errno = rc;
    return IBV_REREG_MR_ERR_CMD;
  }
  return 0;
}

ibv_mr* reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                      int access) {
  observe::count(Counter::regions_provider);
  const provider::Inside inside;
  return provider::real().ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access);
}

// Advice is a hint; on a region that is not pinned there is nothing to prefetch into.
int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* sges,
              uint32_t count) {
  if (const auto context = find(pd->context)) {
    bool all_virtual = count != 0;
    for (uint32_t i = 0; i < count; ++i)
      all_virtual &= context->regions().is_virtual(sges[i].lkey);
    if (all_virtual)
      return 0;
  }
  const auto function = provider::ops(pd->context).advise_mr;
  if (function == nullptr)
    return EOPNOTSUPP;
  const provider::Inside inside;
  return function(pd, advice, flags, sges, count);
}

} // namespace adverb::model
