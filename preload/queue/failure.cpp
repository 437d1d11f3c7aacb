// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the queue does when something went wrong: starts anew, replays, flushes.
#include "queue/queue.h"
#include "steering/opcode.h"
#include "transfer/message_lane.h"
#include "world/world.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace adverb::queue {

using observe::Counter;
using steering::Disposition;
using steering::Event;
using steering::Fault;
using steering::Request;
using steering::Stage;
using steering::Unasked;

// Everything from `seq` on that has not reached the device starts anew; answers to what was sent of
// it no longer count.
void Queue::rewind(uint64_t seq) {
  for (steering::Lane* const lane : lanes_)
    if (lane->can_be_cut())
      lane->cut(seq);
  for (const auto& way : ways_)
    if (way)
      way->cut(seq);
  for (uint64_t s = std::max(seq, ring_.head()); s < ring_.tail(); ++s) {
    Request& r = ring_.at(s);
    if (r.stage == Stage::posted || r.stage == Stage::done || r.disposition == Disposition::flush)
      continue; // the device has not taken one that it is to flush: that it stays
    r.become(Event::again);
    r.sent = 0;
    r.flawed = r.missed = false;
  }
  next_ = std::min(next_, std::max(seq, ring_.head()));
}

void Queue::again(Request& r) {
  rewind(r.seq);
}

void Queue::missed(Request& r) {
  r.become(Event::missed);
  r.missed = true;
  for (uint64_t s = r.seq + 1; s < ring_.tail(); ++s) {
    Request& later = ring_.at(s);
    later.stale |= later.stage == Stage::posted && later.disposition == Disposition::way &&
                   !later.direct && later.wr.opcode == IBV_WR_RDMA_READ;
  }
  next_ = std::min(next_, r.seq);
}

void Queue::replay(Request& r, Fault fault) {
  rewind(r.seq);
  // A few bytes of it would be carried out where the key is the device's, or may be.
  if (fault == Fault::peer && (r.unasked == Unasked::sent || r.served != 0) &&
      r.disposition != Disposition::replay) {
    r.unasked = Unasked::device;
    world_.counters.count(Counter::replays);
    return;
  }
  r.fault = fault;
  if (r.disposition != Disposition::replay)
    r.become(Event::replay);
}

// Completes in error without having been executed, with the queue pair in error already.
void Queue::spoil(Request& r, const ibv_wc& wc) {
  r.result = {};
  r.result.wc = wc;
  r.result.wc.opcode = steering::completion_opcode(r.wr.opcode); // undefined, but programs look
  r.become(Event::spoiled);
  mode_ = Mode::failed;
}

// A device finds out about a READ's elements when the data comes back, which here came another way;
// and nothing about those whose memory is gone, where it has pinned their pages: it would go on to
// the peer's device, and blame that.
bool Queue::fails_here(const Request& r) const {
  return r.fault == Fault::unbacked || r.fault == Fault::unanswered ||
         (r.fault == Fault::own_elements &&
          (r.wr.opcode == IBV_WR_RDMA_READ || elements_.are_devices(r)));
}

// Makes the device itself fail the request. Where the peer refused it, a few bytes go under the
// reserved key: the peer's device answers with its NAK, moves its queue pair and raises its event.
// Where our own elements are at fault, a WRITE of them as they stand fails at home, before anything
// is sent.
Queue::Step Queue::issue_replay(Request& r, int& why) {
  for (const steering::Lane* const lane : lanes_)
    if (lane->busy())
      return Step::wait;
  if (!host_.may_replay())
    return Step::wait;
  // One behind it that was there first (order "relaxed") would be taken for the later one; and what
  // ends the queue pair without the device leaves nothing before it undone.
  device_.commit();
  if (device_.refused())
    return Step::changed;
  if (device_.has_later(r.seq) || (device_.busy() && (fails_here(r) || elements_.lands_apart()))) {
    device_.want_drained(r);
    return Step::wait;
  }
  if (fails_here(r))
    return issue_nothing(r);
  ibv_send_wr wr = r.wr;
  wr.send_flags &= ~static_cast<unsigned>(IBV_SEND_INLINE);
  wr.send_flags |= IBV_SEND_SIGNALED;
  const auto room = device_.room();
  auto used = static_cast<uint32_t>(r.wr.num_sge);
  if (r.fault == Fault::own_elements) {
    wr.opcode = IBV_WR_RDMA_WRITE;
    std::copy_n(r.wr.sg_list, r.wr.num_sge, room.begin());
  } else {
    bool inlined = false;
    if (!elements_.lend_few_bytes(r, room, used, inlined)) {
      why = ENOMEM;
      return Step::refused;
    }
    if (inlined)
      wr.send_flags |= IBV_SEND_INLINE;
  }
  device_.post(r, wr, used, *this);
  device_.commit();
  if (r.stage == Stage::posted) {
    mode_ = Mode::replaying;
    device_.wish();
    world_.counters.count(Counter::replays);
  }
  return Step::issued;
}

// What the device is not asked to refuse takes the queue pair to error itself: what is before it is
// done, and nothing behind it is executed.
Queue::Step Queue::issue_nothing(Request& r) {
  ibv_wc wc{};
  wc.status = r.fault == Fault::unbacked     ? IBV_WC_LOC_QP_OP_ERR
              : r.fault == Fault::unanswered ? IBV_WC_RETRY_EXC_ERR
                                             : IBV_WC_LOC_PROT_ERR;
  host_.enter_error();
  spoil(r, wc);
  return Step::issued;
}

// The queue pair is in error: the provider completes whatever is posted with WR_FLUSH_ERR.
Queue::Step Queue::issue_flush(Request& r) {
  // One behind it that is there already (order "relaxed") would, completing, take it for done.
  if (device_.has_later(r.seq)) {
    device_.want_drained(r);
    return Step::wait;
  }
  const auto room = device_.room();
  r.become(Event::fail);
  ibv_send_wr wr = r.wr;
  uint32_t used = 0;
  if (host_.facts(r).connected) {
    wr = {};
    wr.opcode = IBV_WR_SEND;
  } else if ((wr.send_flags & IBV_SEND_INLINE) == 0) {
    used = static_cast<uint32_t>(r.wr.num_sge);
    std::copy_n(r.wr.sg_list, r.wr.num_sge, room.begin());
  }
  wr.send_flags = IBV_SEND_SIGNALED;
  device_.post(r, wr, used, *this);
  return Step::issued;
}

void Queue::on_completion(const steering::Completion& completion) {
  const uint64_t seq = completion.wc.wr_id & ~marker_bit;
  close_passthrough();
  const QpLane::News news = device_.on_completion(completion);
  next_ = std::min(next_, device_.take_restarted());
  uint64_t announced = UINT64_MAX;
  const auto busy = [](const steering::Lane* lane) { return lane->busy(); };
  if (news == QpLane::News::marker_refused &&
      (device_.busy() || std::ranges::any_of(lanes_, busy))) {
    // What waited for it has been posted behind it all the same, or waited together with one that
    // has passed it (order "relaxed"). That is flushed now, and the first that is tells why.
    cause_ = error_left_ ? IBV_WC_SUCCESS : completion.wc.status;
    mode_ = Mode::failed;
    rewind(seq + 1);
  } else if (news == QpLane::News::marker_refused && next_ < ring_.tail()) {
    // It was of the kind of the request that waits for it, so that one meets the same refusal.
    Request& r = ring_.at(next_);
    if (r.may(Event::spoiled))
      spoil(r, completion.wc);
  } else if (news == QpLane::News::marker_flushed) {
    mode_ = Mode::failed;
    rewind(ring_.head());
  } else if (news == QpLane::News::landed) {
    announced = seq;
    done_below_ = std::max(done_below_, seq + 1);
    if (mode_ == Mode::replaying && ring_.at(seq).disposition == Disposition::replay)
      mode_ = Mode::open;
    if (completion.wc.status != IBV_WC_SUCCESS) {
      mode_ = Mode::failed;
      rewind(seq + 1);
    }
  } else if (news == QpLane::News::none) {
    return;
  }
  if (std::exchange(undelivered_, false) && mode_ != Mode::failed) [[unlikely]] {
    // A device would have found out when the data came, and gone no further.
    host_.enter_error();
    mode_ = Mode::failed;
    rewind(seq + 1);
  }
  if (oldest_is_done())
    retire(announced);
  turn();
}

// What is queued is chosen anew by its epoch. What has begun, and has some left to be sent, starts
// anew; what it sent keeps its key, for it comes before the acknowledgement.
void Queue::on_keys_ended(std::span<const uint32_t> keys) {
  if (next_ == ring_.tail())
    return;
  Request& r = ring_.at(next_);
  if (r.stage != Stage::carried || r.sent == r.length || r.ahead ||
      std::ranges::find(keys, steering::remote_key(r.wr)) == keys.end())
    return;
  again(r);
  turn();
}

// What had been sent may have been carried out, or not. The device of a reliable queue pair fails
// the first of it, and so all that is behind it; one to a key of the device's own the device would
// carry out, perhaps a second time, so it fails here. Of a queue pair whose messages may be lost
// the device has to be given every one, and drops them with nobody's knowing: sent to the peer once
// more over the next link, one could be carried out a second time.
void Queue::on_gone() {
  close_passthrough();
  passthrough_.forget_key();
  passthrough_.end_leases();
  for (const auto& way : ways_)
    if (way)
      way->gone();
  uint64_t first = ring_.head();
  while (first < ring_.tail() && ring_.at(first).stage != Stage::carried &&
         ring_.at(first).stage != Stage::half)
    ++first;
  const bool lossy = context_.messages.lossy();
  for (uint64_t s = first; s < ring_.tail() && lossy; ++s)
    if (Request& r = ring_.at(s); r.stage == Stage::carried || r.stage == Stage::half)
      r.unasked = Unasked::device;
  if (first < ring_.tail() && (lossy || may_be_repeated(first)))
    rewind(first);
  else if (first < ring_.tail())
    lost(ring_.at(first));
  else
    rewind(next_); // they may have waited for a credit
}

void Queue::lost(Request& r) {
  if (r.served == 0)
    return replay(r, Fault::peer);
  if (world_.log.every("steered-and-lost", 10))
    world_.log.warn("the link to a peer was lost while the peer's CPU had a request of {} bytes to "
                    "carry out; whether it has is not known, so it fails (RETRY_EXC_ERR)",
                    r.length);
  replay(r, Fault::unanswered);
}

// Of what has been sent from `first` on: only steered READs, as the device may read again what
// nobody has been told of, and bytes of SENDs that nobody has seen.
bool Queue::may_be_repeated(uint64_t first) const {
  for (uint64_t s = first; s < ring_.tail(); ++s)
    if (const Request& r = ring_.at(s); (r.stage == Stage::carried || r.stage == Stage::half) &&
                                        !r.ahead &&
                                        (r.served == 0 || r.wr.opcode != IBV_WR_RDMA_READ))
      return false;
  return true;
}

void Queue::fail() {
  close_passthrough();
  mode_ = Mode::failed;
  rewind(ring_.head());
  turn();
}

void Queue::clear() {
  passthrough_.forget_key();
  for (uint64_t s = ring_.head(); s < ring_.tail(); ++s)
    if (Request& r = ring_.at(s); r.holding)
      elements_.release(r);
  for (steering::Lane* const lane : lanes_)
    if (lane->can_be_cut())
      lane->cut(ring_.head());
  ring_.clear();
  next_ = ring_.tail();
  device_.reset();
  for (const auto& way : ways_)
    if (way)
      way->gone();
  recover();
  gate_ = gate_before_stop_ = Gate::open;
}

} // namespace adverb::queue
