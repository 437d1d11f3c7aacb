// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Completions: what the provider's CQ has for a queue pair, and what the program is told.
#include "model/objects.h"
#include "model/qp.h"
#include "model/srq.h"
#include "observe/counters.h"
#include "world/world.h"

#include <algorithm>

namespace adverb::model {

using observe::Counter;

bool Qp::take(ibv_wc& wc, Cq& cq) {
  if (wc.status == IBV_WC_SUCCESS && (wc.wr_id & (receive_bit | marker_bit)) == 0) [[likely]] {
    const std::lock_guard hold(lock_);
    // What this queue pair has pushed before is first.
    if (cq.none_ready()) [[likely]] {
      if (is_passthrough(wc.wr_id)) {
        if (!passthrough_.on_completion_polled())
          send_.passthrough_landed();
        return true;
      }
      if (send_.complete_direct(wc.wr_id, wc.wr_id)) {
        wc.qp_num = qpn_;
        return true;
      }
    }
  }
  Completion completion;
  completion.wc = wc;
  on_completion(completion, cq);
  return false;
}

void Qp::passthrough_landed() {
  const std::lock_guard hold(lock_);
  send_.passthrough_landed();
}

// Of what the device did with the program's own list: the program's as it is, and before whatever
// it lets go on.
void Qp::on_passthrough_completion(const Completion& completion, Cq& cq) {
  Completion c = completion;
  c.wc.qp_num = qpn_;
  cq.push(c);
  if (c.wc.status != IBV_WC_SUCCESS)
    send_.passthrough_failed();
  else if (!passthrough_.on_completion_polled())
    send_.passthrough_landed();
}

void Qp::on_completion(const Completion& completion, Cq& cq) {
  if ((completion.wc.wr_id & receive_bit) == 0) {
    const std::lock_guard hold(lock_);
    if (completion.wc.status == IBV_WC_REM_ACCESS_ERR)
      messages_.forget_real_keys();
    // Where it is not RC devices differ: some stop its requests alone, as they should.
    if (completion.wc.status != IBV_WC_SUCCESS)
      broken(type_ == IBV_QPT_RC || device_state() == IBV_QPS_ERR ? IBV_QPS_ERR : IBV_QPS_SQE);
    if (is_passthrough(completion.wc.wr_id))
      on_passthrough_completion(completion, cq);
    else
      send_.on_completion(completion);
    return;
  }
  Completion c = completion;
  // What arrived behind a message that could not be delivered would not have arrived.
  if (undelivered_ && c.wc.status == IBV_WC_SUCCESS)
    c.wc.status = IBV_WC_WR_FLUSH_ERR;
  std::optional<uint64_t> wr_id;
  if (srq_) {
    wr_id = srq_->complete(c.wc, receipts_);
  } else {
    const std::lock_guard hold(lock_);
    wr_id = receive_->complete(c.wc, receipts_);
  }
  if (!wr_id)
    return;
  c.wc.wr_id = *wr_id;
  // Before it can be polled: who is told of an error is told when nothing is served any more.
  if (c.wc.status != IBV_WC_SUCCESS)
    receive_failed(completion.wc.status == IBV_WC_SUCCESS);
  if (c.wc.status == completion.wc.status)
    cq.push(c);
  else
    cq.push_own(c); // an error that the device's event did not tell of
}

// A receive has failed, `here` or at the device. That ends an RC queue pair, and any that adverb
// has taken a message for which it cannot deliver. Of others the device decides: many let UC and UD
// go on. What is flushed must not be executed, so the device's is moved, too, unless it has been:
// one that is asked once more may raise its event once more.
void Qp::receive_failed(bool here) {
  undelivered_ = undelivered_ || here;
  const std::lock_guard hold(lock_);
  if (state_ < IBV_QPS_RTR || state_ == IBV_QPS_ERR)
    return;
  const bool moved = device_state() == IBV_QPS_ERR;
  if (!moved && !here && type_ != IBV_QPT_RC)
    return;
  if (moved)
    fell(IBV_QPS_ERR);
  else
    enter_error();
  send_.fail();
}

bool Qp::waits_for_completion() {
  if (receipts_.awaits_send())
    return true;
  const std::lock_guard hold(lock_);
  return send_.waits_for_device();
}

CqUser::Numbers Qp::numbers() {
  const std::lock_guard hold(lock_);
  return {first_number_, ring_.tail()};
}

bool Qp::posted(const ibv_wc& wc) {
  if (!other_number || is_passthrough(wc.wr_id))
    return false;
  const std::lock_guard hold(lock_);
  if ((wc.wr_id & receive_bit) != 0)
    return receive_ && receive_->knows(wc.wr_id);
  const uint64_t seq = wc.wr_id & ~marker_bit;
  return ring_.holds_seq(seq) && ring_.at(seq).stage == steering::Stage::posted;
}

bool Qp::awaits_copy(uintptr_t start, uint64_t bytes) {
  const std::lock_guard hold(lock_);
  return receive_ && receive_->awaits_copy(start, bytes);
}

bool Qp::awaits_placing(uintptr_t start, uint64_t bytes, const ReceiveQueue& unless) {
  const std::lock_guard hold(lock_);
  return receive_ && receive_.get() != &unless && receive_->awaits_placing(start, bytes);
}

bool Qp::settle_receives(const transfer::RequestHeader& request) {
  if (request.kind == static_cast<uint8_t>(transfer::Kind::send))
    return true; // nobody sees by it that others have come
  const uint32_t staged = srq_ ? srq_->staged() : receive_->staged();
  // What came ahead of a SEND may have to go anywhere.
  const bool ahead = world().budgets().any_ahead();
  if ((staged != 0 || ahead) && !recv_cq_->try_settle())
    return false;
  // Of a large request's parts each looks for itself.
  if (!ahead && !context_->regions().awaits_copy(request.key, request.address, request.length))
    return true;
  const auto all = world().objects().cqs.all();
  return std::all_of(all.begin(), all.end(), [](const auto& cq) { return cq->try_settle(); });
}

void Qp::try_again() {
  const std::lock_guard hold(lock_);
  send_.have_brought();
}

void Qp::complete(const Completion& completion, bool announced) {
  Completion c = completion;
  c.wc.qp_num = qpn_;
  if (announced)
    send_cq_->push(c);
  else
    send_cq_->push_own(c);
}

bool Qp::take_marker() {
  if (!send_cq_->take_marker(qpn_))
    return false;
  world().counters.count(Counter::drains);
  return true;
}

void Qp::marker_landed() {
  send_cq_->marker_landed();
  world().counters.count(Counter::markers);
}

void Qp::request_drain() {
  send_cq_->request_drain();
}

void Qp::request_drain_in_time() {
  send_cq_->request_drain_in_time();
}

} // namespace adverb::model
