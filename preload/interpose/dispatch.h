// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which objects the patched context functions hand to the model.
//
// ibv_post_send and its like jump through the context, so once one object of a context is managed,
// the others pass here too. They must cost a few instructions: a direct-mapped table, indexed by
// the object's address, holds the function to jump to (the provider's for an unmanaged object) and
// what the model has behind a managed one, which so needs no look-up. A slot once taken stays until
// its object is destroyed, so readers need no lock: the key is written last. Objects that find
// their slot taken take the slow way round, by the model's table.
#pragma once

#include "model/verbs.h"

#include <infiniband/verbs.h>

namespace adverb::interpose {

// Null: to the provider, whose pointers of the context must have been kept.
void add_qp(ibv_qp* qp, model::Qp* managed);
void remove_qp(ibv_qp* qp);
void add_cq(ibv_cq* cq, model::Cq* managed);
void remove_cq(ibv_cq* cq);
void add_srq(ibv_srq* srq, model::Srq* managed);
void remove_srq(ibv_srq* srq);

// What stands behind an extended object that was patched (patch.h); null in a fork child, where
// the object is the parent's.
model::Qp* managed(ibv_qp_ex* qp);
model::Cq* managed(ibv_cq_ex* cq);

// What the patched pointers point at.
int dispatch_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
int dispatch_post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
int dispatch_post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad);
int dispatch_poll_cq(ibv_cq* cq, int entries, ibv_wc* wc);
int dispatch_req_notify_cq(ibv_cq* cq, int solicited_only);
int dispatch_bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind);

// In a fork child every object of the parent is the provider's.
void forget_all();

} // namespace adverb::interpose
