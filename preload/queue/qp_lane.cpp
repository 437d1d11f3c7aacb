// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "queue/qp_lane.h"
#include "steering/opcode.h"

#include <algorithm>
#include <cerrno>

namespace adverb::queue {

using steering::Event;
using steering::Request;
using steering::Stage;

namespace {
constexpr size_t batch_max = 16; // more than that is several doorbells
}

QpLane::QpLane(Device& device, steering::Ring& ring, PassthroughSends& passthrough)
    : device_(device), ring_(ring), passthrough_(passthrough),
      chain_(std::min(batch_max, ring.capacity())), elements_(chain_.size() * ring.sges()) {
  room_ = elements_of(0);
}

// One more at the end of the batch.
[[gnu::always_inline]] inline void QpLane::add(uint64_t seq, const ibv_send_wr& wr) {
  assert(!refused()); // it would pass what is to be issued anew
  if (used_ == 0)
    last_before_batch_ = last_;
  ibv_send_wr& mine = chain_[used_];
  mine = wr;
  mine.wr_id = seq;
  mine.next = nullptr;
  if (used_ != 0)
    chain_[used_ - 1].next = &mine;
  ++used_;
  if (steering::consumes_receive(wr.opcode))
    ++receives_;
}

void QpLane::post(Request& r, const ibv_send_wr& wr, uint32_t elements,
                  steering::LaneOwner& owner) {
  add(r.seq, wr);
  ibv_send_wr& mine = chain_[used_ - 1];
  mine.sg_list = room_.data();
  mine.num_sge = static_cast<int>(elements);
  r.become(Event::posted);
  r.owner = &owner;
  took(r.wr.opcode); // `wr` may be of another kind: a replay, a flush
  last_ = {r.seq, ring_.all_signaled() || (wr.send_flags & IBV_SEND_SIGNALED) != 0};
  if (used_ == chain_.size())
    post_batch();
  else
    room_ = elements_of(used_);
}

void QpLane::post_direct(const Request& r, const ibv_send_wr& wr) {
  add(r.seq, wr);
  took(wr.opcode);
  last_ = {r.seq, r.signaled};
  if (used_ == chain_.size())
    post_batch();
}

void QpLane::post_batch() {
  const size_t count = std::exchange(used_, 0);
  room_ = elements_of(0);
  ibv_send_wr* bad = nullptr;
  if (const int why = device_.post_send_to_provider(chain_.data(), &bad); why != 0) [[unlikely]]
    refuse_batch(count, bad, why);
}

// Of the `count` requests of the batch the provider has not taken `bad` and those behind it.
void QpLane::refuse_batch(size_t count, const ibv_send_wr* bad, int why) {
  // Who names no request of ours has taken none.
  const bool named = bad >= chain_.data() && bad < chain_.data() + count;
  const size_t first = named ? static_cast<size_t>(bad - chain_.data()) : 0;
  if (!refusal_)
    refusal_ = Refusal{chain_[first].wr_id, why};
  give_back(first, count);
}

bool QpLane::take_back(uint64_t seq) {
  size_t first = 0;
  while (first < used_ && chain_[first].wr_id != seq)
    ++first;
  if (first == used_)
    return false;
  give_back(first, std::exchange(used_, first));
  if (first != 0)
    chain_[first - 1].next = nullptr;
  room_ = elements_of(first);
  return true;
}

// Those of the batch from `first` on are queued again.
void QpLane::give_back(size_t first, size_t count) {
  last_ = first == 0 ? last_before_batch_
                     : Last{chain_[first - 1].wr_id,
                            ring_.all_signaled() ||
                                (chain_[first - 1].send_flags & IBV_SEND_SIGNALED) != 0};
  for (size_t i = first; i < count; ++i) {
    Request& r = ring_.at(chain_[i].wr_id);
    r.become(Event::refused);
    gave(r.wr.opcode);
    if (marker_ == Marker::request && reporting_ == r.seq)
      unreport();
    if (steering::consumes_receive(chain_[i].opcode))
      --receives_;
    if (!r.direct)
      r.owner->returned(r);
  }
}

// If the last one posted was not asked to report, a request that is will say that it is done.
void QpLane::want_drained(const Request& next) {
  commit();
  wish();
  if (lacks_marker())
    post_marker(marker_for(next));
}

void QpLane::want_flushed() {
  commit();
  wish();
  if (lacks_marker())
    post_marker(IBV_WR_RDMA_WRITE);
}

void QpLane::want_flushed_uncounted() {
  commit();
  wish();
  if (busy() && marker_ == Marker::none)
    post_marker(IBV_WR_RDMA_WRITE);
}

// By a marker of a kind that is on its way already: the peer lets this one do that.
void QpLane::want_reported() {
  commit();
  const InFlight is = in_flight();
  if (is.reads || is.writes || busy())
    wish();
  // An atomic, or a SEND, reports itself or waits for what does.
  if ((is.reads || is.writes) && lacks_marker())
    post_marker(is.reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE);
}

// An atomic whose result is staged reports itself, unless memory was short: so a peer that allows
// atomics alone is asked nothing else. A READ on its way it does allow.
void QpLane::want_brought() {
  commit();
  wish();
  if (!lacks_marker())
    return;
  const InFlight is = in_flight();
  if (is.reads || is.staged)
    post_marker(is.reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE);
}

void QpLane::post_marker(std::optional<ibv_wr_opcode> opcode) {
  if (!opcode || !device_.take_marker())
    return;
  ibv_send_wr wr{};
  wr.wr_id = marker_bit | last_.seq;
  wr.opcode = *opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (device_.post_send_to_provider(&wr, &bad) != 0) {
    device_.marker_landed(); // no room in the send queue; an older completion will come first
    return;
  }
  marker_ = Marker::out;
}

int QpLane::post_aside(const Request& next, ibv_send_wr wr) {
  commit();
  if (refused() || marker_ != Marker::none || !device_.take_marker()) {
    wish();
    return EAGAIN;
  }
  wr.wr_id = marker_bit | next.seq;
  wr.send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (const int rc = device_.post_send_to_provider(&wr, &bad); rc != 0) {
    device_.marker_landed();
    wish();
    // No room in the send queue: an older completion comes first, if there is one to come.
    return rc == ENOMEM && busy() ? EAGAIN : rc;
  }
  marker_ = Marker::out;
  aside_after_ = last_.seq;
  wish();
  return 0;
}

QpLane::InFlight QpLane::in_flight() {
  InFlight is;
  is.reads = (passthrough_.traits() & steering::trait_read) != 0;
  is.writes = (passthrough_.traits() & steering::trait_write) != 0;
  is.heard = passthrough_.reports().awaits_report(); // each is followed by another look
  for (uint64_t s = ring_.head(); s < ring_.tail(); ++s) {
    const Request& r = ring_.at(s);
    if (r.stage != Stage::posted)
      continue;
    const bool brings = steering::reads_remote(r.wr.opcode);
    is.reads |= r.wr.opcode == IBV_WR_RDMA_READ;
    is.writes |= steering::is_one_sided(r.wr.opcode) && !brings;
    is.heard |= brings && (r.signaled || (marker_ == Marker::request && reporting_ == s));
    is.staged |= steering::is_atomic(r.wr.opcode) && !r.signaled && r.holding && !r.in_place;
  }
  return is;
}

std::optional<ibv_wr_opcode> QpLane::marker_for(const Request& next) {
  if (next.wr.opcode == IBV_WR_RDMA_READ)
    return IBV_WR_RDMA_READ;
  if (steering::is_one_sided(next.wr.opcode) && !steering::is_atomic(next.wr.opcode))
    return IBV_WR_RDMA_WRITE;
  const InFlight is = in_flight();
  if (is.reads)
    return IBV_WR_RDMA_READ;
  // What waits without a fence, or is not to go to the device at all, waits to fail.
  const bool to_fail = (next.wr.send_flags & IBV_SEND_FENCE) == 0 ||
                       next.disposition == steering::Disposition::replay;
  if (is.writes || is.staged || to_fail)
    return IBV_WR_RDMA_WRITE;
  return std::nullopt;
}

bool QpLane::drains_unheard(const Request& next) {
  return marker_ == Marker::none && !last_.signaled && !in_flight().heard && !marker_for(next);
}

bool QpLane::report(const Request& next) {
  if (marker_ != Marker::none || !device_.take_marker()) {
    wish();
    return false;
  }
  marker_ = Marker::request;
  reporting_ = next.seq;
  return true;
}

void QpLane::unreport() {
  assert(marker_ == Marker::request);
  marker_ = Marker::none;
  device_.marker_landed();
}

// Told in posting order, with what each way has to copy, before any later request looks at it.
inline void QpLane::land_up_to(uint64_t seq) {
  for (uint64_t s = ring_.head(); s < ring_.tail() && s <= seq; ++s) {
    Request& r = ring_.at(s);
    if (r.stage != Stage::posted)
      continue;
    r.become(Event::landed);
    gave(r.wr.opcode);
    if (r.stale && r.result.wc.status == IBV_WC_SUCCESS) [[unlikely]]
      restart(r);
    else if (!r.direct)
      r.owner->landed(r);
  }
}

// It has brought what may be older than what a READ before it is to bring still.
void QpLane::restart(Request& r) {
  r.owner->returned(r);
  r.result = {};
  r.stale = r.in_place = false;
  r.no_view = true; // so that those that are executed again are not a third time
  r.become(Event::again);
  restarted_ = std::min(restarted_, r.seq);
  device_.executed_again();
}

bool QpLane::land_direct(uint64_t seq) {
  while (ring_.head() < seq) {
    const Request& r = ring_.at(ring_.head());
    if (r.stage != Stage::posted || !r.direct || r.signaled)
      return false;
    gave(r.wr.opcode);
    ring_.pop();
  }
  const Request& r = ring_.at(seq);
  if (r.stage != Stage::posted || !r.direct || !r.signaled)
    return false;
  no_passthrough_left();
  gave(r.wr.opcode);
  ring_.pop();
  return true;
}

QpLane::News QpLane::on_completion(const steering::Completion& completion) {
  const ibv_wc& wc = completion.wc;
  const uint64_t seq = wc.wr_id & ~marker_bit;
  if ((wc.wr_id & marker_bit) != 0) {
    // librxe puts a request into the queue before it is refused, in a child for one, where the
    // kernel finds it later.
    if (marker_ != Marker::out) [[unlikely]]
      return News::none;
    marker_ = Marker::none;
    device_.marker_landed();
    no_passthrough_left(); // none went behind it, for what waits for it is in the ring
    // Those before it that had failed would have said so before it did. Of post_aside() the number
    // is that of the request that waits, which may have been posted since to be flushed.
    const auto after = std::exchange(aside_after_, std::nullopt);
    land_up_to(after.value_or(seq));
    if (after)
      device_.aside_landed(wc.status == IBV_WC_SUCCESS);
    if (wc.status == IBV_WC_SUCCESS)
      return News::drained;
    return wc.status == IBV_WC_WR_FLUSH_ERR ? News::marker_flushed : News::marker_refused;
  }
  if (!ring_.holds_seq(seq) || ring_.at(seq).stage != Stage::posted)
    return News::none;
  if (marker_ == Marker::request && seq == reporting_) [[unlikely]]
    unreport();
  Request& r = ring_.at(seq);
  r.result = completion;
  if (wc.status == IBV_WC_SUCCESS)
    r.result.wc.opcode = steering::completion_opcode(r.wr.opcode);
  no_passthrough_left(); // none was posted behind it while it was in the ring
  land_up_to(seq);
  return News::landed;
}

void QpLane::reset() {
  gave_all();
  used_ = 0;
  room_ = elements_of(0);
  if (marker_ != Marker::none)
    device_.marker_landed();
  marker_ = Marker::none;
  if (std::exchange(aside_after_, std::nullopt))
    device_.aside_landed(false);
  last_ = {};
  refusal_.reset();
  receives_ = 0;
  passthrough_unit_.reset(); // gave_all()
  passthrough_.reset();
}

} // namespace adverb::queue
