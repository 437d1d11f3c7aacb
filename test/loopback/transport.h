// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One work request against its target: the requester's and the responder's half of RC, UC and
// UD, with the checks and the answers the InfiniBand specification (chapters 9, 10) gives them.
#pragma once
#include "responder.h"

#include <algorithm>

namespace adverb::loopback {

struct Answer {
  enum Kind { done, silent, not_ready } kind = done;
  ibv_wc_status status = IBV_WC_SUCCESS;
  uint32_t rnr_timer = 0;
};

Answer transport(Qp& qp, uint64_t position);

// What a target learns of `qp` as the requester of `wqe`.
Origin origin_of(const Qp& qp, const SendWqe& wqe);

// The number of packets of the path MTU that a request needs, at least one.
uint32_t packets(const Qp& qp, const SendWqe& wqe);

// The local side of a work request: its inline data, or its SGEs checked against this process's
// keys. Inside a CriticalSection.
ibv_wc_status local_ranges(Qp& qp, uint64_t position, uint32_t rights, Ranges& ranges);

// The target's half of one request of UC or UD, at this moment. Inside a CriticalSection of
// `owner`, the process of the target.
Reply respond(const Origin& origin, uint32_t owner, SendWqe& wqe, const Ranges& local);

// wire.cpp. The same request over a bad link: it may be lost, arrive twice or later. exec_mutex
// held. Returns the status of the sender's completion.
ibv_wc_status send_over_link(Qp& qp, uint64_t position);

// Moves the data of a READ behind the head of the queue before its turn, when it can be moved.
void fetch_early(Qp& qp, uint64_t position);

} // namespace adverb::loopback
