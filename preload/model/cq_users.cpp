// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Who has completions in a completion queue, and what becomes of those of one that ends.
#include "model/context.h"
#include "model/cq.h"
#include "observe/log.h"
#include "queue/qp_lane.h"
#include "world/world.h"

#include <algorithm>

namespace adverb::model {

// Whether it is of a queue pair that was detached, though its provider should have none any more.
bool Cq::is_late(const ibv_wc& wc) const {
  const auto of = [&wc](const Gone& gone) {
    const uint64_t number = wc.wr_id & ~marker_bit;
    return gone.qpn == wc.qp_num && ((wc.wr_id & receive_bit) != 0 ||
                                     (number >= gone.numbers.from && number < gone.numbers.end));
  };
  if (!std::any_of(gone_.begin(), gone_.end(), of))
    return false;
  if (context_.world().log.every("late-completion", 10))
    context_.world().log.warn("a completion of queue pair {} came after it was destroyed; the "
                              "program does not get it",
                              wc.qp_num);
  return true;
}

// Providers put another number into completions of raw packets: that of the half of the queue pair.
CqUser* Cq::user_by_number(const ibv_wc& wc) {
  for (const auto& [qpn, attached] : qps_)
    if (attached.qp->posted(wc))
      return attached.qp;
  return nullptr;
}

void Cq::attach(uint32_t qpn, CqUser* qp) {
  std::unique_lock hold(poll_lock_);
  // The provider has destroyed another of that number, whose detach() has not come yet.
  for (auto old = qps_.find(qpn); old != qps_.end() && old->second.qp != qp; old = qps_.find(qpn)) {
    const CqUser* const user = old->second.qp;
    hold.unlock();
    take_the_last(qpn, user, true);
    hold.lock();
  }
  qps_[qpn] = {qp};
  other_numbers_ = other_numbers_ || qp->other_number;
  seen_[qpn % seen_max] = {};
}

void Cq::detach(uint32_t qpn, const CqUser* qp) {
  take_the_last(qpn, qp, true);
}

void Cq::was_reset(uint32_t qpn, const CqUser* qp) {
  take_the_last(qpn, qp, false);
}

// The device decides what becomes of completions that the program has not polled yet: those it has
// are in its queue still or are not, and those that adverb has go the same way.
void Cq::take_the_last(uint32_t qpn, const CqUser* qp, bool gone) {
  std::unique_lock hold(poll_lock_);
  const auto find = [&] {
    const auto it = qps_.find(qpn);
    return it != qps_.end() && it->second.qp == qp ? it : qps_.end();
  };
  if (find() == qps_.end())
    return;
  absorb(cq_->cqe + 2);
  if (holds(qpn)) {
    hold.unlock(); // asking it takes a while
    const bool leaves = context_.leaves_completions();
    hold.lock();
    if (find() == qps_.end())
      return;
    if (!leaves)
      discard(qpn);
  }
  if (!gone)
    return;
  const auto it = find();
  gone_[next_gone_++ % gone_.size()] = {qpn, it->second.qp->numbers()};
  qps_.erase(it);
  seen_[qpn % seen_max] = {};
}

bool Cq::holds(uint32_t qpn) {
  const std::lock_guard ready(ready_lock_);
  for (size_t i = 0; i < ready_count_; ++i)
    if (ready_[(ready_head_ + i) % ready_.size()].wc.qp_num == qpn)
      return true;
  return false;
}

void Cq::discard(uint32_t qpn) {
  const std::lock_guard ready(ready_lock_);
  size_t kept = 0;
  for (size_t i = 0; i < ready_count_; ++i) {
    const Completion& c = ready_[(ready_head_ + i) % ready_.size()];
    if (c.wc.qp_num != qpn)
      ready_[(ready_head_ + kept++) % ready_.size()] = c;
  }
  ready_count_ = kept;
}

bool Cq::in_use() {
  const std::lock_guard hold(poll_lock_);
  return !qps_.empty();
}

} // namespace adverb::model
