// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One work completion, and how adverb's own wr_ids at the provider are told apart.
#pragma once

#include <cstdint>

#include <infiniband/verbs.h>

namespace adverb::model {

// What ibv_poll_cq reports, and what only the extended interface can tell.
struct Completion {
  ibv_wc wc{};
  uint64_t timestamp = 0;
  uint64_t wallclock = 0;
  uint32_t flow_tag = 0;
  uint16_t cvlan = 0;
  ibv_wc_tm_info tm{};
};

// Managed queue pairs post under wr_ids of adverb's: the send queue's sequence number, with
// marker_bit for a completion asked for only to learn that earlier requests are done; receives
// carry receive_bit. (The opcode of a failed completion is undefined, so it cannot tell.)
inline constexpr uint64_t marker_bit = uint64_t{1} << 62;
inline constexpr uint64_t receive_bit = uint64_t{1} << 63;

} // namespace adverb::model
