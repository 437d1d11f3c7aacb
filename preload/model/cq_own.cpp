// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What adverb itself has in a completion queue: markers, the kick that wakes a sleeping program,
// and its own look while the program does not poll.
#include "model/context.h"
#include "model/cq.h"
#include "observe/log.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <utility>

namespace adverb::model {

// What cannot be fired now, for want of a kick, is when there is one; and what is left to one that
// is out already is looked at again when that is taken, for it may have landed before the arm.
void Cq::wake(bool error) {
  if (!kick_.is_open())
    return;
  if (error && armed_solicited_) {
    if (kick_.fire(Kick::Kind::solicited))
      armed_ = armed_solicited_ = false;
    else
      missed_error_ = true;
  } else if (armed_) {
    if (kick_.fire(Kick::Kind::plain))
      armed_ = false;
    else
      missed_ = true;
  }
}

void Cq::wake_again() {
  const bool error = std::exchange(missed_error_, false);
  if (std::exchange(missed_, false) || error)
    wake(error);
}

bool Cq::kicked() {
  const std::lock_guard ready(ready_lock_);
  return kick_.outstanding();
}

void Cq::resized(int programs) {
  const std::lock_guard ready(ready_lock_);
  const int kicks = cq_->channel != nullptr ? Kick::entries_max : 0;
  marker_room_ = std::clamp(cq_->cqe - programs - kicks, 1, markers_max);
}

bool Cq::take_marker(uint32_t qpn) {
  const std::lock_guard ready(ready_lock_);
  if (markers_out_ < marker_room_) {
    ++markers_out_;
    return true;
  }
  if (std::find(marker_waiters_.begin(), marker_waiters_.end(), qpn) == marker_waiters_.end())
    marker_waiters_.push_back(qpn);
  marker_waited_for_ = true;
  return false;
}

void Cq::marker_landed() {
  const std::lock_guard ready(ready_lock_);
  assert(markers_out_ > 0);
  --markers_out_;
}

// Who found no room for a marker has nothing under way whose completion would make it look again.
void Cq::pass_marker_on() {
  while (marker_waited_for_.load(std::memory_order_relaxed)) [[unlikely]] {
    uint32_t qpn = 0;
    {
      const std::lock_guard ready(ready_lock_);
      if (markers_out_ >= marker_room_ || marker_waiters_.empty())
        return;
      qpn = marker_waiters_.front();
      marker_waiters_.erase(marker_waiters_.begin());
      marker_waited_for_ = !marker_waiters_.empty();
    }
    if (const auto it = qps_.find(qpn); it != qps_.end())
      it->second.qp->try_again();
  }
}

void Cq::ensure_kick(const ibv_ah_attr& ah) {
  if (cq_->channel == nullptr)
    return;
  ibv_pd* pd = context_.own_pd();
  const std::lock_guard ready(ready_lock_);
  if (kick_.is_open() || pd == nullptr)
    return;
  const int rc = kick_.open(pd, cq_, ah);
  if (rc == 0) {
    kick_path_ = ah;
    if (ready_count_ != 0) // they may have come while there was none
      wake(true);
  } else if (context_.world().log.once("kick-open"))
    context_.world().log.warn(
        "cannot make the queue pair that wakes sleeping completion channels (errno "
        "{}); a program that sleeps may wait for its next receive",
        rc);
}

void Cq::close_kick() {
  const std::lock_guard hold(poll_lock_);
  const std::lock_guard ready(ready_lock_);
  kick_.close();
}

// A program that posts and never polls still expects its data to travel. The program's own polls
// usually come first; the timer backs off from 200 us to 3.2 ms while they do not.
void Cq::request_drain() {
  drain_after(std::chrono::microseconds(200 << std::min(drain_round_.load(), 4U)));
}

void Cq::request_drain_in_time() {
  drain_after(std::chrono::milliseconds(4));
}

void Cq::drain_after(std::chrono::microseconds delay) {
  drain_wanted_.store(true);
  if (drain_timer_.exchange(true))
    return;
  context_.world().service.after(delay, [weak = weak_from_this()] {
    if (const auto self = weak.lock())
      self->service_drain();
  });
}

void Cq::service_drain() {
  drain_timer_.store(false);
  if (!drain_wanted_.exchange(false)) {
    drain_round_ = 0;
    return;
  }
  if (poll_lock_.try_lock()) {
    if (closed_) {
      poll_lock_.unlock();
      return;
    }
    absorb(cq_->cqe + 2);
    bool waiting = false;
    for (const auto& [qpn, attached] : qps_) {
      if (!attached.qp->waits_for_completion())
        continue;
      waiting = true;
      attached.qp->try_again(); // its marker may have found no room in the send queue
    }
    poll_lock_.unlock();
    if (!waiting) {
      drain_round_ = 0;
      return;
    }
  }
  ++drain_round_;
  request_drain();
}

} // namespace adverb::model
