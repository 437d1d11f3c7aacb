// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The queue pairs of a completion queue, and what adverb itself has there: markers, the kick that
// wakes a sleeping program, and its own look while the program does not poll.
#include "model/context.h"
#include "model/cq.h"
#include "observe/log.h"
#include "world/world.h"

#include <algorithm>
#include <chrono>

namespace adverb::model {

// Whether it is of a queue pair that was detached.
bool Cq::is_late(const ibv_wc& wc) const {
  if (!users_.is_late(wc))
    return false;
  if (context_.world().log.every("late-completion", 10))
    context_.world().log.warn("a completion of queue pair {} came after it was destroyed; the "
                              "program does not get it",
                              wc.qp_num);
  return true;
}

void Cq::attach(uint32_t qpn, CqUser* qp) {
  std::unique_lock hold(poll_lock_);
  // The provider has destroyed another of that number, whose detach() has not come yet.
  for (const CqUser* old = users_.find(qpn); old != nullptr; old = users_.find(qpn)) {
    if (old == qp)
      return;
    hold.unlock();
    take_the_last(qpn, old, true);
    hold.lock();
  }
  users_.add(qpn, *qp);
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
  if (users_.find(qpn) != qp)
    return;
  absorb(cq_->cqe + 2);
  std::unique_lock ready(ready_lock_);
  const bool holds = ready_.has(qpn);
  ready.unlock();
  if (holds) {
    hold.unlock(); // asking it takes a while
    const bool leaves = context_.leaves_completions();
    hold.lock();
    if (users_.find(qpn) != qp)
      return;
    ready.lock();
    if (!leaves)
      ready_.remove(qpn);
    ready.unlock();
  }
  if (gone)
    users_.remove(qpn);
}

bool Cq::in_use() {
  const std::lock_guard hold(poll_lock_);
  return !users_.empty();
}

bool Cq::kicked() {
  const std::lock_guard ready(ready_lock_);
  return notifier_.kick_is_out();
}

void Cq::resized(int programs) {
  const std::lock_guard ready(ready_lock_);
  const int kicks = cq_->channel != nullptr ? Kick::entries_max : 0;
  markers_.resize(std::clamp(cq_->cqe - programs - kicks, 1, markers_max));
}

bool Cq::take_marker(uint32_t qpn) {
  const std::lock_guard ready(ready_lock_);
  return markers_.take(qpn);
}

void Cq::marker_landed() {
  const std::lock_guard ready(ready_lock_);
  markers_.give_back();
}

// A queue pair that found no room for a marker has nothing under way whose completion would make
// it look again.
void Cq::pass_marker_on() {
  while (markers_.any_waits()) [[unlikely]] {
    std::unique_lock ready(ready_lock_);
    const auto qpn = markers_.next();
    ready.unlock();
    if (!qpn)
      return;
    if (CqUser* const user = users_.find(*qpn))
      user->try_again();
  }
}

void Cq::ensure_kick(const ibv_ah_attr& ah) {
  if (cq_->channel == nullptr)
    return;
  ibv_pd* pd = context_.own_pd();
  const std::lock_guard ready(ready_lock_);
  if (notifier_.is_open() || pd == nullptr)
    return;
  const int rc = notifier_.open(pd, cq_, ah);
  if (rc == 0) {
    if (!ready_.empty()) // they may have come while there was none
      notifier_.wake(true);
  } else if (context_.world().log.once("kick-open"))
    context_.world().log.warn(
        "cannot make the queue pair that wakes sleeping completion channels (errno "
        "{}); a program that sleeps may wait for its next receive",
        rc);
}

void Cq::close_kick() {
  const std::lock_guard hold(poll_lock_);
  const std::lock_guard ready(ready_lock_);
  notifier_.close();
}

// A program that posts and never polls still expects its data to travel.
void Cq::request_drain() {
  drain_after(drain_.pause());
}

void Cq::request_drain_in_time() {
  drain_after(std::chrono::milliseconds(4));
}

void Cq::drain_after(std::chrono::microseconds delay) {
  if (!drain_.want())
    return;
  context_.world().service.after(delay, [weak = weak_from_this()] {
    if (const auto self = weak.lock())
      self->service_drain();
  });
}

void Cq::service_drain() {
  if (!drain_.due()) {
    drain_.reset();
    return;
  }
  if (poll_lock_.try_lock()) {
    if (closed_) {
      poll_lock_.unlock();
      return;
    }
    absorb(cq_->cqe + 2);
    bool waiting = false;
    users_.for_each([&waiting](CqUser& user) {
      if (!user.waits_for_completion())
        return;
      waiting = true;
      user.try_again(); // its marker may have found no room in the send queue
    });
    poll_lock_.unlock();
    if (!waiting) {
      drain_.reset();
      return;
    }
  }
  drain_.slow_down();
  request_drain();
}

} // namespace adverb::model
