// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/srq.h"
#include "provider/ops.h"
#include "world/world.h"

namespace adverb::model {

int Srq::post(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  receive_.bring_in(wr);
  const std::lock_guard hold(lock_);
  return post_receives(receive_, wr, bad, [this](ibv_recv_wr* mine) {
    ibv_recv_wr* unused = nullptr;
    return context_->world().provider.ops(srq_->context).post_srq_recv(srq_, mine, &unused);
  });
}

} // namespace adverb::model
