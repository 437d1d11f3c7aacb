// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One work completion: what ibv_poll_cq reports, and what only the extended interface can tell.
#pragma once

#include <cstdint>

#include <infiniband/verbs.h>

namespace adverb::steering {

struct Completion {
  ibv_wc wc{};
  uint64_t timestamp = 0;
  uint64_t wallclock = 0;
  uint32_t flow_tag = 0;
  uint16_t cvlan = 0;
  ibv_wc_tm_info tm{};
};

} // namespace adverb::steering
