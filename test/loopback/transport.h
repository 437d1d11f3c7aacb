// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One work request against its target: the requester's and the responder's half of RC, UC and
// UD, with the checks and the answers the InfiniBand specification (chapters 9, 10) gives them.
#pragma once
#include "engine.h"

#include <algorithm>

namespace adverb::loopback {

struct Answer {
  enum Kind { done, silent, not_ready } kind = done;
  ibv_wc_status status = IBV_WC_SUCCESS;
  uint32_t rnr_timer = 0;
};

Answer transport(Qp& qp, uint64_t position);

// Moves the data of a READ behind the head of the queue before its turn, when it can be moved.
void fetch_early(Qp& qp, uint64_t position);

} // namespace adverb::loopback
