// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The queue itself: append, decide, issue in order, retire in order. The ways themselves are in
// send_offload.cpp and send_unload.cpp.
#include "model/send_queue.h"
#include "model/qp.h"
#include "observe/counters.h"
#include "observe/log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace adverb::model {

using observe::Counter;

SendQueue::SendQueue(Qp& qp, const ibv_qp_cap& cap, bool all_signaled)
    : qp_(qp), all_signaled_(all_signaled), sges_(std::max(cap.max_send_sge, 1U)),
      inline_bytes_(cap.max_inline_data), ring_(std::max(cap.max_send_wr, 1U)),
      sge_store_(ring_.size() * sges_), holds_(ring_.size() * sges_),
      inline_(ring_.size() * inline_bytes_) {
  scratch_.reserve(sges_);
}

SendQueue::~SendQueue() {
  clear();
}

namespace {

bool is_atomic(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

bool is_one_sided(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
         opcode == IBV_WR_RDMA_READ || is_atomic(opcode);
}

uint32_t remote_key(const ibv_send_wr& wr) {
  return is_atomic(wr.opcode) ? wr.wr.atomic.rkey : wr.wr.rdma.rkey;
}

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    return IBV_WC_RDMA_WRITE;
  case IBV_WR_RDMA_READ:
    return IBV_WC_RDMA_READ;
  case IBV_WR_ATOMIC_CMP_AND_SWP:
    return IBV_WC_COMP_SWAP;
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    return IBV_WC_FETCH_ADD;
  default:
    return IBV_WC_SEND;
  }
}

} // namespace

int SendQueue::append(const ibv_send_wr& wr) {
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > sges_)
    return EINVAL;
  if (tail_ - head_ == ring_.size())
    return ENOMEM;
  uint64_t length = 0;
  for (int i = 0; i < wr.num_sge; ++i)
    length += wr.sg_list[i].length;
  const bool inlined = (wr.send_flags & IBV_SEND_INLINE) != 0;
  if (inlined && length > inline_bytes_)
    return EINVAL;

  SendRequest& r = at(tail_);
  r = {};
  r.seq = tail_;
  r.wr = wr;
  r.wr.next = nullptr;
  r.length = length;
  r.signaled = all_signaled_ || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  if (inlined) {
    // The program may reuse its buffer as soon as post returns, queued or not.
    for (int i = 0; i < wr.num_sge; ++i) {
      memcpy(inline_store(r) + r.inlined, reinterpret_cast<const void*>(wr.sg_list[i].addr),
             wr.sg_list[i].length);
      r.inlined += wr.sg_list[i].length;
    }
  } else if (wr.num_sge > 0) {
    ibv_sge* store = &sge_store_[tail_ % ring_.size() * sges_];
    std::copy_n(wr.sg_list, wr.num_sge, store);
    r.wr.sg_list = store;
  }
  ++tail_;
  return 0;
}

void SendQueue::truncate(uint64_t seq) {
  tail_ = std::max(seq, next_);
}

// Which way, or undecided while the peer or its key is not known yet (and somebody has been asked).
Way SendQueue::decide(SendRequest& r) {
  if (!is_one_sided(r.wr.opcode) || !qp_.one_sided())
    return Way::offload;
  if (is_atomic(r.wr.opcode)) {
    // What the device rejects at post it shall reject at post: a misaligned or short operand.
    if (r.length != 8 || (r.wr.wr.atomic.remote_addr & 7) != 0)
      return Way::offload;
  } else if (r.length == 0) {
    return Way::offload; // no key is looked at
  }
  if (qp_.peer() == Peer::linked && qp_.initiator()->down())
    return Way::undecided; // on_down() comes, and settles first what is under way
  if (qp_.peer() == Peer::unknown)
    qp_.ask_peer();
  if (qp_.peer() == Peer::stock)
    return Way::offload;
  if (qp_.peer() != Peer::linked)
    return Way::undecided;
  const uint32_t rkey = remote_key(r.wr);
  const auto known = qp_.initiator()->key(rkey);
  if (!known) {
    ask_key(rkey);
    return Way::undecided;
  }
  return *known ? Way::unload : Way::offload;
}

SendQueue::Step SendQueue::issue(SendRequest& r, int& why) {
  if (failed_)
    return flush(r, why);
  if (paused_ && r.stage != Stage::parts) // what has begun goes on, as on the wire
    return Step::wait;
  if (replaying_) {
    blocked_on_provider_ = true;
    qp_.send_cq().request_drain();
    return Step::wait;
  }
  if (r.way == Way::undecided && (r.way = decide(r)) == Way::undecided)
    return Step::wait;
  switch (r.way) {
  case Way::offload:
    return parts_must_finish(r) ? Step::wait : post(r, why);
  case Way::unload:
    return is_atomic(r.wr.opcode) ? with_grant(r, why) : unload(r, why);
  case Way::replay:
    return parts_out_ != 0 || qp_.peer() == Peer::lost ? Step::wait : replay(r, why);
  default:
    return flush(r, why);
  }
}

int SendQueue::pump(uint64_t sync) {
  blocked_on_provider_ = false;
  int refused = 0;
  while (next_ < tail_ && !stopped_) {
    SendRequest& r = at(next_);
    if (r.stage == Stage::posted || r.stage == Stage::done) {
      ++next_;
      continue;
    }
    int why = 0;
    const Step step = issue(r, why);
    if (step == Step::wait)
      break;
    if (step == Step::refused) {
      if (r.seq >= sync) {
        truncate(r.seq);
        refused = why;
        break;
      }
      // Accepted from the program earlier, so its completion is the only place to say it.
      observe::log_error("the provider refused a request that was accepted: errno {}", why);
      r.result.wc.status = IBV_WC_LOC_QP_OP_ERR;
      r.result.wc.qp_num = qp_.verbs()->qp_num;
      r.stage = Stage::done;
      failed_ = true;
    }
    ++next_;
  }
  retire();
  return refused;
}

bool SendQueue::provider_must_finish(const SendRequest& next) {
  if (posted_ == 0)
    return false;
  return !(qp_.relaxed() && next.wr.opcode == IBV_WR_RDMA_WRITE && posted_nonwrite_ == 0);
}

bool SendQueue::parts_must_finish(const SendRequest& next) const {
  if (parts_out_ == 0)
    return false;
  return !(qp_.relaxed() && next.wr.opcode == IBV_WR_RDMA_WRITE && reads_out_ == 0);
}

// Requests up to and including `up_to` are done at the provider: RC completes in order, and an
// unsignaled request has no other sign.
void SendQueue::finish_posted(uint64_t up_to) {
  for (uint64_t s = head_; s < tail_ && s <= up_to; ++s) {
    SendRequest& r = at(s);
    if (r.stage != Stage::posted)
      continue;
    r.stage = Stage::done;
    --posted_;
    if (r.wr.opcode != IBV_WR_RDMA_WRITE)
      --posted_nonwrite_;
  }
}

void SendQueue::on_provider_completion(const Completion& completion) {
  const ibv_wc& wc = completion.wc;
  const uint64_t seq = wc.wr_id & ~marker_bit;
  if ((wc.wr_id & marker_bit) != 0) {
    marker_out_ = false;
    qp_.send_cq().marker_landed();
    observe::count(Counter::markers);
    if (wc.status == IBV_WC_SUCCESS) {
      finish_posted(seq);
    } else if (wc.status != IBV_WC_WR_FLUSH_ERR && next_ < tail_) {
      // The marker is of the kind of the request that waits for it, so it meets the same refusal.
      SendRequest& r = at(next_);
      r.result.wc = wc;
      r.stage = Stage::done;
      failed_ = true;
    }
    pump();
    return;
  }
  if (seq < head_ || seq >= tail_ || at(seq).stage != Stage::posted)
    return; // of an incarnation that is gone
  SendRequest& r = at(seq);
  finish_posted(seq);
  r.result = completion;
  if (wc.status == IBV_WC_SUCCESS) {
    r.result.wc.opcode = completion_opcode(r.wr.opcode);
    if (r.announced)
      r.result.wc.byte_len = static_cast<uint32_t>(r.length);
  } else {
    failed_ = true;
    restart(next_);
  }
  if (r.way == Way::replay)
    replaying_ = false;
  retire(seq);
  pump();
}

// Completions leave in the order of the requests. `announced` is the one whose completion the
// provider has just delivered, with its event; any other may have to wake the program.
void SendQueue::retire(uint64_t announced) {
  while (head_ < next_ && at(head_).stage == Stage::done) {
    SendRequest& r = at(head_);
    Completion& c = r.result;
    if (r.holding) {
      if (c.wc.status == IBV_WC_SUCCESS)
        finish_copies(r);
      release(r);
    }
    if (r.signaled || c.wc.status != IBV_WC_SUCCESS) {
      c.wc.wr_id = r.wr.wr_id;
      c.wc.qp_num = qp_.verbs()->qp_num;
      if (r.seq == announced)
        qp_.send_cq().push(c);
      else
        qp_.send_cq().push_own(c);
    }
    ++head_;
  }
  if (idle() && !grants_.empty() && !grant_timer_) {
    grant_timer_ = true;
    qp_.schedule_grant_release();
  }
}

// The data of a READ or atomic that the device put into staging goes where the program wants it.
void SendQueue::finish_copies(SendRequest& r) {
  if (r.wr.opcode != IBV_WR_RDMA_READ && !is_atomic(r.wr.opcode))
    return;
  for (int i = 0; i < r.wr.num_sge; ++i) {
    const auto& hold = holds(r)[i];
    if (hold.block && !qp_.regions().deliver(hold, r.wr.sg_list[i].length))
      r.result.wc.status = IBV_WC_LOC_PROT_ERR;
  }
}

void SendQueue::release(SendRequest& r) {
  for (uint32_t i = 0; i < sges_; ++i)
    if (holds(r)[i])
      qp_.regions().release(qp_.staging(), holds(r)[i]);
  r.holding = false;
}

// Everything from `seq` on that has not reached the provider starts anew; answers to what was sent
// so far no longer count, and the responder executes none of it (messages.h).
void SendQueue::restart(uint64_t seq) {
  ++run_;
  parts_out_ = 0;
  reads_out_ = 0;
  grant_asked_ = false;
  for (uint64_t s = seq; s < tail_; ++s) {
    SendRequest& r = at(s);
    if (r.stage == Stage::posted || r.stage == Stage::done)
      continue;
    r.stage = Stage::queued;
    r.sent = 0;
    r.parts = 0;
    r.announced = false;
    if (r.way != Way::replay)
      r.way = Way::undecided;
  }
  next_ = std::min(next_, seq);
}

void SendQueue::fail_all() {
  failed_ = true;
  replaying_ = false;
  restart(head_);
  pump();
}

void SendQueue::clear() {
  for (uint64_t s = head_; s < tail_; ++s)
    if (at(s).holding)
      release(at(s));
  head_ = next_ = tail_;
  posted_ = posted_nonwrite_ = 0;
  restart(tail_);
  if (marker_out_)
    qp_.send_cq().marker_landed();
  marker_out_ = failed_ = replaying_ = paused_ = stopped_ = false;
  receives_ = 0;
  asked_key_.reset();
  grants_.clear();
}

} // namespace adverb::model
