// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What backends have in common: which arguments they are asked about, and what one does that needs
// nothing of its own.
#include "registration/backend.h"
#include "memory/copy.h"

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
  return wanted.length != 0 && are_plain_rights(wanted.access);
}

int Backend::localize(Region& /*region*/, const Use& /*use*/, ibv_sge& /*sge*/, Hold& /*hold*/) {
  return 0;
}

void Backend::release(Hold& /*hold*/) noexcept {}

bool Backend::deliver(const Hold& hold, size_t bytes) const noexcept {
  return memory::write(hold.program, hold.block.data, bytes);
}

int Backend::lend(Region& /*region*/, uint64_t /*address*/, uint64_t /*length*/,
                  unsigned /*access*/, std::shared_ptr<Grant>& /*grant*/) {
  return EOPNOTSUPP;
}

void Backend::take_back(const std::shared_ptr<Grant>& /*grant*/) noexcept {}

} // namespace adverb::registration
