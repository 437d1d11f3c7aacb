// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What backends have in common: which arguments they are asked about, and what one does that needs
// nothing of its own.
#include "registration/backend.h"
#include "memory/copy.h"
#include "memory/mappings.h"

namespace adverb::registration {

namespace {

constexpr unsigned known_rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                  IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING;

} // namespace

bool are_plain_rights(unsigned access) noexcept {
  constexpr unsigned needs_local = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  return (access & ~known_rights) == 0 &&
         ((access & needs_local) == 0 || (access & IBV_ACCESS_LOCAL_WRITE) != 0);
}

bool is_plain(const Wanted& wanted) noexcept {
  // A range that runs over the end of the address space, by bytes or by pages, is EINVAL in stock.
  const auto first = reinterpret_cast<uintptr_t>(wanted.start);
  const uintptr_t last = first + wanted.length;
  if (last < first || ((last + 4095) & ~uintptr_t{4095}) < first)
    return false;
  // So is one whose addresses in work requests lie otherwise in their pages.
  if (((first ^ wanted.iova) & 4095) != 0)
    return false;
  return wanted.length != 0 && are_plain_rights(wanted.access);
}

bool is_plain(const Change& c) noexcept {
  constexpr int all =
      IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
  return c.what != 0 && (c.what & ~all) == 0 && (!c.other_rights() || are_plain_rights(c.access)) &&
         (!c.moves() || (c.start != nullptr && c.length != 0)) &&
         (!c.other_pd() || c.pd != nullptr);
}

Wanted changed(const Region& region, const Change& c) noexcept {
  Wanted now;
  now.pd = c.other_pd() ? c.pd : region.pd;
  now.start = c.moves() ? c.start : reinterpret_cast<void*>(region.start);
  now.length = c.moves() ? c.length : region.length;
  now.iova = c.moves() ? reinterpret_cast<uintptr_t>(c.start) : region.iova;
  now.access = c.other_rights() ? c.access : region.access;
  now.verb = now.iova == reinterpret_cast<uintptr_t>(now.start) ? Wanted::Verb::reg_mr
                                                                : Wanted::Verb::reg_mr_iova;
  return now;
}

Refusal follows_addresses(const Wanted& wanted) {
  // The kernel asks for write permission whenever the device may write.
  const bool writable = (wanted.access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                          IBV_ACCESS_REMOTE_ATOMIC)) != 0;
  switch (memory::mapping_of(reinterpret_cast<uintptr_t>(wanted.start), wanted.length, writable)) {
  case memory::Mapping::absent:
    return {EFAULT, "a part of it is not mapped, or not with the rights asked for"};
  case memory::Mapping::foreign:
    return {EOPNOTSUPP, "it is a device's memory or a shared file"};
  case memory::Mapping::ordinary:
    break;
  }
  return {};
}

int Backend::localize(Region& /*region*/, const Use& /*use*/, ibv_sge& /*sge*/, Hold& /*hold*/) {
  return 0;
}

void Backend::release(Hold& /*hold*/) noexcept {}

bool Backend::deliver(const Region& region, const Hold& hold, size_t bytes) const noexcept {
  return memory::write(region.at(hold.address), hold.block.data, bytes);
}

void Backend::meet(ibv_context* /*context*/, ibv_qp_type /*type*/) {}

void Backend::leave(Region& /*region*/, const Region& /*now*/) noexcept {}

int Backend::lend(Region& /*region*/, uint64_t /*address*/, uint64_t /*length*/,
                  unsigned /*access*/, std::shared_ptr<Grant>& /*grant*/) {
  return EOPNOTSUPP;
}

int Backend::view(Region& /*region*/, uint64_t /*address*/, uint64_t /*length*/,
                  std::shared_ptr<Grant>& /*grant*/) {
  return EOPNOTSUPP;
}

void Backend::served(const Region& /*region*/, uint64_t /*address*/, uint64_t /*length*/) noexcept {
}

int Backend::lease(Region& /*region*/, uint64_t /*address*/, uint64_t /*length*/,
                   std::shared_ptr<Grant>& /*grant*/) {
  return EOPNOTSUPP;
}

} // namespace adverb::registration
