// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// In a file of its own, as what it asks of others' queues is asked of shared ones, too.
#include "model/behind_staged.h"
#include "model/srq.h"
#include "provider/ops.h"
#include "world/world.h"

namespace adverb::model {

int Srq::post(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return post_receives(receive_, lock_, wr, bad, [this](ibv_recv_wr* mine) {
    ibv_recv_wr* unused = nullptr;
    return context_->world().provider.ops(srq_->context).post_srq_recv(srq_, mine, &unused);
  });
}

} // namespace adverb::model
