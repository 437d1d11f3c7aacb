// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "fake_provider.h"

#include <cstdlib>

namespace {

FakeProvider* fake = nullptr; // of the test case that runs

ibv_mr* add(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned access) {
  if (fake->on_register)
    fake->on_register();
  uint64_t bytes = length;
  for (const auto& [key, region] : fake->regions)
    bytes += region->mr.length;
  const int refused = (access & IBV_ACCESS_ON_DEMAND) != 0 && fake->refuse_on_demand != 0
                          ? fake->refuse_on_demand
                          : fake->refuse_regions;
  if (refused != 0 || bytes > fake->limit) {
    errno = refused != 0 ? refused : ENOMEM;
    return nullptr;
  }
  ++fake->registered;
  auto region = std::make_unique<FakeProvider::Region>();
  region->iova = iova;
  region->access = access;
  region->mr.context = pd->context;
  region->mr.pd = pd;
  region->mr.addr = addr;
  region->mr.length = length;
  region->mr.lkey = region->mr.rkey = fake->next_key++;
  ibv_mr* mr = &region->mr;
  fake->regions[mr->lkey] = std::move(region);
  return mr;
}

ibv_mr* reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  return add(pd, addr, length, reinterpret_cast<uintptr_t>(addr), static_cast<unsigned>(access));
}

ibv_mr* reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access) {
  return add(pd, addr, length, iova, static_cast<unsigned>(access));
}

ibv_mr* reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned access) {
  return add(pd, addr, length, iova, access);
}

int dereg_mr(ibv_mr* mr) {
  if (fake->refuse_dereg != 0)
    return fake->refuse_dereg;
  return fake->regions.erase(mr->lkey) == 1 ? 0 : EINVAL;
}

// As some providers do: the region has another key afterwards.
int rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, size_t length, int access) {
  auto node = fake->regions.extract(mr->lkey);
  FakeProvider::Region& region = *node.mapped();
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0)
    mr->pd = pd;
  if ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0)
    region.access = static_cast<unsigned>(access);
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
    mr->addr = addr;
    mr->length = length;
    region.iova = reinterpret_cast<uintptr_t>(addr);
  }
  node.key() = mr->lkey = mr->rkey = fake->next_key++;
  fake->regions.insert(std::move(node));
  return 0;
}

int query_device_ex(ibv_context* /*context*/, const ibv_query_device_ex_input* /*input*/,
                    ibv_device_attr_ex* attr, size_t size) {
  if (size < sizeof *attr)
    return EINVAL;
  ++fake->queries;
  *attr = {};
  attr->odp_caps = fake->odp;
  attr->orig_attr.vendor_id = fake->vendor;
  return 0;
}

ibv_pd* alloc_pd(ibv_context* context) {
  return new ibv_pd{context, 100};
}

int dealloc_pd(ibv_pd* pd) {
  delete pd;
  return 0;
}

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  if (fake->refuse_windows != 0) {
    errno = fake->refuse_windows;
    return nullptr;
  }
  auto* mw = new ibv_mw{};
  mw->context = pd->context;
  mw->pd = pd;
  mw->rkey = fake->next_key++;
  mw->type = type;
  return mw;
}

int dealloc_mw(ibv_mw* mw) {
  delete mw;
  return 0;
}

} // namespace

FakeProvider::FakeProvider() {
  if (fake != nullptr)
    abort();
  fake = this;
  context.device = &device;
  context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  extended.sz = sizeof extended;
  extended.query_device_ex = query_device_ex;
  context.ops.alloc_mw = alloc_mw;
  context.ops.dealloc_mw = dealloc_mw;
  pd.context = other_pd.context = &context;
  pd.handle = 1;
  other_pd.handle = 2;
}

FakeProvider::~FakeProvider() {
  fake = nullptr;
}

const adverb::provider::Real& FakeProvider::table() {
  static const adverb::provider::Real table = [] {
    adverb::provider::Real r;
    r.ibv_reg_mr = reg_mr;
    r.ibv_reg_mr_iova = reg_mr_iova;
    r.ibv_reg_mr_iova2 = reg_mr_iova2;
    r.ibv_dereg_mr = dereg_mr;
    r.ibv_rereg_mr = rereg_mr;
    r.ibv_alloc_pd = alloc_pd;
    r.ibv_dealloc_pd = dealloc_pd;
    return r;
  }();
  return table;
}
