// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Issue in order, retire in order. What follows a failure is in queue_failure.cpp.
#include "queue/queue.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <new>

namespace adverb::queue {

// What is marked always_inline is called in this file alone, once or nearly: every post goes
// through it.

using observe::Counter;
using steering::Disposition;
using steering::Event;
using steering::Fault;
using steering::Fit;
using steering::Request;
using steering::Stage;

Queue::Queue(Parts parts)
    : world_(parts.world), host_(parts.host), ring_(parts.ring), elements_(parts.elements),
      device_(parts.device), passthrough_(parts.passthrough), lanes_(std::move(parts.lanes)),
      table_(parts.ways), order_(parts.order), by_device_(table_.back()->carried),
      context_{world_, ring_, *this, elements_, device_, parts.messages}, ways_(table_.size()),
      next_(ring_.tail()) {}

Queue::~Queue() {
  clear();
}

[[gnu::always_inline]] inline bool Queue::choose_way(Request& r) {
  // As a replay: a peer that has just gone shall be told of by the device's own timers.
  if (r.unasked == steering::Unasked::device && !host_.may_replay()) [[unlikely]]
    return false;
  // A question that is answered at once is followed by one more look.
  for (int looks = 0; looks < 2; ++looks) {
    const steering::Facts facts = host_.facts(r);
    r.epoch = facts.key.epoch;
    const steering::Choice choice =
        r.unasked == steering::Unasked::device
            ? steering::Choice{Fit::yes, table_.back(), table_.size() - 1}
            : steering::choose(facts, table_);
    switch (choice.fit) {
    case Fit::yes: {
      auto& way = ways_[choice.index];
      if (!way)
        way = choice.row->functions.make(context_);
      r.row = choice.row;
      r.way = way.get();
      r.ahead = facts.ahead && choice.row != table_.back();
      r.become(Event::chosen);
      host_.on_way_chosen(r, choice.index,
                          r.unasked == steering::Unasked::device ? steering::Reason::in_vain
                                                                 : steering::reason_of(facts));
      return true;
    }
    case Fit::ask_peer:
      host_.ask_peer();
      continue;
    case Fit::ask_key:
      host_.ask_key(r);
      return false;
    default:
      return false;
    }
  }
  return false;
}

[[gnu::always_inline]] inline bool Queue::lane_is_free(Request& r, steering::Lane& lane) {
  // The device keeps a fence by itself, but not for bytes that are copied before or after it.
  if (steering::is_fenced_off(r, device_) &&
      (&lane != &device_ || elements_.copies_in() || elements_.may_copy_out(r))) {
    device_.want_drained(r);
    if (&lane != &device_ || device_.refused() || !device_.drains_unheard(r))
      return false;
    r.in_place = true;
  }
  // One behind it that was there first (order "relaxed") would be taken for the later one.
  if (&lane == &device_ && device_.has_later(r.seq)) [[unlikely]] {
    device_.want_drained(r);
    return false;
  }
  for (steering::Lane* const each : lanes_)
    if (steering::is_fenced_off(r, *each) ||
        (each != &lane && steering::must_wait(r, *each, order_))) {
      each->want_drained(r);
      return false;
    }
  if (&lane != &device_) {
    // What was put on the device's lane before is on its way before anything goes elsewhere.
    device_.commit();
    if (device_.refused())
      return false;
    if (steering::must_wait(r, device_, order_)) {
      device_.want_drained(r);
      return false;
    }
  }
  return true;
}

[[gnu::always_inline]] inline Queue::Step Queue::issue_by_way(Request& r, int& why) {
  if (r.ahead) [[unlikely]] {
    // Nobody sees its bytes before it, and it is with the device in its place.
    if (r.stage == Stage::half && device_.has_later(r.seq)) {
      device_.want_drained(r);
      return Step::wait;
    }
    // What has missed waits for nothing that the device has behind it, which may have passed it.
  } else if (!r.missed && !lane_is_free(r, r.way->lane(r))) {
    return Step::wait;
  }
  const Step step = r.way->issue(r, why);
  if (step == Step::issued && !r.missed)
    world_.counters.count(r.row->carried);
  return step;
}

[[gnu::always_inline]] inline Queue::Step Queue::issue(Request& r, int& why) {
  // What has begun was there before what failed (order "relaxed"), and goes on.
  if (mode_ == Mode::failed && r.stage == Stage::queued)
    return issue_flush(r);
  if (gate_ == Gate::paused && (r.stage == Stage::queued))
    return Step::wait;
  if (mode_ == Mode::replaying) {
    device_.wish();
    return Step::wait;
  }
  if (r.disposition == Disposition::none) {
    // To find out may have put what is before it out, and some of that was not taken.
    if (!choose_way(r) || device_.refused())
      return Step::wait;
  } else if (r.disposition == Disposition::way && r.stage == Stage::queued &&
             r.epoch != host_.epoch(r)) {
    // Chosen earlier, by what is no longer so. What has begun goes on as it was begun.
    world_.counters.count(Counter::posts_chosen_again);
    r.become(Event::again);
    return Step::changed;
  }
  return r.disposition == Disposition::replay ? issue_replay(r, why) : issue_by_way(r, why);
}

// Memory may be short where a way or a lane makes something. What has begun is tried again.
[[gnu::always_inline]] inline Queue::Step Queue::try_issue(Request& r, int& why) {
  try {
    return issue(r, why);
  } catch (const std::bad_alloc&) {
    why = ENOMEM;
    return r.stage == Stage::queued ? Step::refused : Step::wait;
  }
}

// A request that cannot be issued: something it needs cannot be had, or the provider has not taken
// it. What the program is just posting is given back to it; of what was accepted earlier its
// completion is the only place to say it.
void Queue::refuse(Request& r, int why, Refused& refused, const Posting& posting) {
  const uint64_t sync = posting.sync;
  if (r.seq >= sync && (!posting.whole || r.seq == sync || device_.take_back(sync))) {
    refused = {posting.whole ? sync : r.seq, why};
    rewind(refused.seq); // those behind it may have asked the peer
    ring_.truncate(refused.seq);
    next_ = std::min(next_, ring_.tail());
    return;
  }
  world_.log.error("a request that was accepted cannot be issued: errno {}", why);
  if (mode_ != Mode::failed)
    return replay(r, Fault::unbacked);
  ibv_wc wc{}; // it was to be flushed
  wc.status = IBV_WC_WR_FLUSH_ERR;
  spoil(r, wc);
}

// The provider's answer to a batch: true when it has taken all of it.
[[gnu::always_inline]] inline bool Queue::take_refusal(Refused& refused, const Posting& posting) {
  if (!device_.refused()) [[likely]]
    return true;
  const auto refusal = device_.take_refusal();
  next_ = std::min(next_, refusal->seq);
  refuse(ring_.at(refusal->seq), refusal->why, refused, posting);
  return false;
}

Queue::Refused Queue::turn(uint64_t sync, bool whole) {
  assert(next_ >= ring_.head());
  const Posting posting{sync, whole};
  close_passthrough();
  device_.forget_wish();
  Refused refused;
  do {
    while (next_ < ring_.tail() && gate_ != Gate::stopped) {
      Request& r = ring_.at(next_);
      if (r.stage == Stage::posted || r.stage == Stage::done) {
        ++next_;
        continue;
      }
      int why = 0;
      const Step step = try_issue(r, why);
      if (!take_refusal(refused, posting) || step == Step::changed)
        continue;
      if (step == Step::wait)
        break;
      if (step == Step::refused)
        refuse(r, why, refused, posting);
      else
        ++next_;
    }
    device_.commit();
  } while (!take_refusal(refused, posting));
  for (steering::Lane* const lane : lanes_)
    lane->commit();
  if (oldest_is_done())
    retire();
  // It passed one that the device does not report by itself: order "relaxed".
  if (done_below_ > ring_.head() && device_.busy() && gate_ != Gate::stopped) [[unlikely]]
    device_.want_drained(ring_.at(done_below_ - 1));
  // Again and again, as there may have been no room for a marker.
  if (report_below_ > ring_.head() && device_.busy() && gate_ != Gate::stopped) [[unlikely]]
    device_.want_reported();
  // A program may look at its memory rather than poll.
  if (elements_.copies_in() && device_.busy() && gate_ != Gate::stopped)
    device_.wish_in_time();
  if (passthrough_wished_ && gate_ != Gate::stopped) [[unlikely]] {
    passthrough_wished_ = passthrough_.used_until(passthrough_report_);
    if (passthrough_wished_ && mode_ == Mode::failed && passthrough_.is_uncounted())
      device_.want_flushed_uncounted();
    else if (passthrough_wished_)
      device_.wish(); // each of them reports
  }
  // Nothing else may tell what the device had done by then.
  if (flushed_from_ != UINT64_MAX && device_.busy() && gate_ != Gate::stopped) [[unlikely]]
    device_.want_flushed();
  return refused;
}

// Completions leave in the order of the requests. `announced` is the one whose completion the
// provider has just delivered, with its event; any other may have to wake the program.
void Queue::retire(uint64_t announced) {
  assert(oldest_is_done());
  do {
    Request& r = ring_.at(ring_.head());
    // It had passed the one that failed: order "relaxed".
    const bool passed = error_left_ && r.result.wc.status == IBV_WC_SUCCESS;
    if (passed || r.seq >= flushed_from_) [[unlikely]] {
      r.result = {};
      r.result.wc.status = IBV_WC_WR_FLUSH_ERR;
    }
    if (cause_ != IBV_WC_SUCCESS && r.result.wc.status != IBV_WC_SUCCESS) [[unlikely]] {
      const ibv_wc_status cause = std::exchange(cause_, IBV_WC_SUCCESS);
      if (r.result.wc.status == IBV_WC_WR_FLUSH_ERR)
        r.result.wc.status = cause;
    }
    error_left_ |= mode_ == Mode::failed && r.result.wc.status != IBV_WC_SUCCESS;
    if (r.signaled || r.result.wc.status != IBV_WC_SUCCESS) {
      r.result.wc.wr_id = r.wr.wr_id;
      host_.complete(r.result, r.seq == announced);
    }
    ring_.pop();
  } while (oldest_is_done());
  if (ring_.empty())
    tell_idle();
}

void Queue::tell_idle() {
  for (const auto& way : ways_)
    if (way)
      way->idle();
}

void Queue::pause(bool on) noexcept {
  close_passthrough();
  Gate& gate = gate_ == Gate::stopped ? gate_before_stop_ : gate_;
  gate = on ? Gate::paused : Gate::open;
}

void Queue::stop() noexcept {
  close_passthrough();
  passthrough_.forget_key();
  if (gate_ != Gate::stopped)
    gate_before_stop_ = std::exchange(gate_, Gate::stopped);
}

void Queue::resume() {
  gate_ = gate_before_stop_;
  turn();
}

bool Queue::carrying() noexcept {
  for (const steering::Lane* const lane : lanes_)
    if (lane->busy())
      return true;
  return next_ < ring_.tail() && ring_.at(next_).stage == Stage::carried;
}

void Queue::done(Request& r) {
  r.become(Event::finished);
  done_below_ = std::max(done_below_, r.seq + 1);
}

void Queue::next(Request& r) {
  r.become(Event::half);
  next_ = std::min(next_, r.seq);
}

void Queue::later(std::chrono::nanoseconds delay, steering::Way& way) {
  host_.later(delay, way);
}

} // namespace adverb::queue
