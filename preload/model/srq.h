// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A shared receive queue whose receives may lie in unpinned regions.
#pragma once

#include "model/context.h"
#include "model/receive_queue.h"
#include "world/sync.h"

#include <memory>
#include <mutex>

namespace adverb::model {

// Its lock is a leaf but for registration's own; taken under a CQ's poll_lock_ and a queue pair's.
class Srq {
public:
  Srq(std::shared_ptr<Context> context, std::shared_ptr<Pd> pd, ibv_srq* srq,
      const ibv_srq_attr& attr)
      : context_(std::move(context)), pd_(std::move(pd)), srq_(srq),
        receive_(*context_, pd_->verbs, pd_->staging, attr.max_wr, attr.max_sge) {}

  ibv_srq* verbs() const noexcept { return srq_; }
  int post(ibv_recv_wr* wr, ibv_recv_wr** bad);
  uint32_t staged() const noexcept { return receive_.staged(); }
  bool takes_ahead() const noexcept { return receive_.takes_ahead(); }
  bool awaits_copy(uintptr_t start, uint64_t bytes) {
    const std::lock_guard hold(lock_);
    return receive_.awaits_copy(start, bytes);
  }
  bool awaits_placing(uintptr_t start, uint64_t bytes, const ReceiveQueue& unless) {
    const std::lock_guard hold(lock_);
    return &receive_ != &unless && receive_.awaits_placing(start, bytes);
  }
  // The provider has destroyed it.
  void forget() {
    const std::lock_guard hold(lock_);
    receive_.clear();
  }
  std::optional<uint64_t> complete(ibv_wc& wc, Receipts& receipts) {
    const std::lock_guard hold(lock_);
    return receive_.complete(wc, receipts);
  }

private:
  std::shared_ptr<Context> context_;
  std::shared_ptr<Pd> pd_;
  ibv_srq* srq_;
  Mutex lock_;
  ReceiveQueue receive_;
};

} // namespace adverb::model
