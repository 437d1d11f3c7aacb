// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// On-demand paging, as ADVERB_LOOPBACK_ODP has it; README.md has the grammar. Memory is reached by
// its address here, so a region on demand differs from another in this: it may be of anything when
// it is registered, and it may not be used for what the device does not say it pages for.
#include "engine.h"

#include <cstdlib>
#include <string_view>

namespace adverb::loopback {

namespace {

struct Operation {
  std::string_view name;
  uint32_t cap;
  bool rc, uc, ud; // types that have it
};

constexpr Operation operations[] = {
    {"send", IBV_ODP_SUPPORT_SEND, true, true, true},
    {"recv", IBV_ODP_SUPPORT_RECV, true, true, true},
    {"srq", IBV_ODP_SUPPORT_SRQ_RECV, true, false, true},
    {"write", IBV_ODP_SUPPORT_WRITE, true, true, false},
    {"read", IBV_ODP_SUPPORT_READ, true, false, false},
    {"atomic", IBV_ODP_SUPPORT_ATOMIC, true, false, false},
};

void apply(ibv_odp_caps& caps, std::string_view word) {
  const bool removes = word.starts_with('-');
  word.remove_prefix(removes ? 1 : 0);
  const std::string_view type = word.substr(0, word.find('.'));
  const std::string_view name = type == word ? "" : word.substr(type.size() + 1);
  const auto set = [&](uint32_t& of, std::string_view its, bool has, const Operation& operation) {
    if (!has || (type != "all" && type != its) || (!name.empty() && name != operation.name))
      return;
    of = removes ? of & ~operation.cap : of | operation.cap;
    caps.general_caps |= IBV_ODP_SUPPORT;
  };
  for (const Operation& operation : operations) {
    set(caps.per_transport_caps.rc_odp_caps, "rc", operation.rc, operation);
    set(caps.per_transport_caps.uc_odp_caps, "uc", operation.uc, operation);
    set(caps.per_transport_caps.ud_odp_caps, "ud", operation.ud, operation);
  }
}

} // namespace

const ibv_odp_caps& odp_caps() {
  static const ibv_odp_caps caps = [] {
    ibv_odp_caps made = {};
    const char* value = getenv("ADVERB_LOOPBACK_ODP");
    std::string_view left = value != nullptr ? value : "";
    while (!left.empty()) {
      const size_t comma = left.find(',');
      apply(made, left.substr(0, comma));
      left = comma == left.npos ? "" : left.substr(comma + 1);
    }
    return made;
  }();
  return caps;
}

bool pages_for(const Work& work) {
  const auto& caps = odp_caps().per_transport_caps;
  const uint32_t has = work.type == IBV_QPT_RC   ? caps.rc_odp_caps
                       : work.type == IBV_QPT_UC ? caps.uc_odp_caps
                       : work.type == IBV_QPT_UD ? caps.ud_odp_caps
                                                 : 0;
  return (work.operation & ~has) == 0;
}

uint32_t odp_operation(uint32_t opcode) {
  switch (opcode) {
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    return IBV_ODP_SUPPORT_WRITE;
  case IBV_WR_RDMA_READ:
    return IBV_ODP_SUPPORT_READ;
  case IBV_WR_ATOMIC_CMP_AND_SWP:
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    return IBV_ODP_SUPPORT_ATOMIC;
  default:
    return IBV_ODP_SUPPORT_SEND;
  }
}

} // namespace adverb::loopback
