// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Requests that the device carries on the program's own queue pair, and the replays and flushes
// that make the device report what went wrong elsewhere.
#include "model/qp.h"
#include "model/send_queue.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "provider/ops.h"
#include "provider/real.h"

#include <algorithm>
#include <cerrno>

namespace adverb::model {

using observe::Counter;

namespace {

bool reads_remote(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
         opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

bool consumes_receive(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
         opcode == IBV_WR_SEND_WITH_INV || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

} // namespace

// Gives `wr` to the provider in the name of `r`.
int SendQueue::hand_over(SendRequest& r, ibv_send_wr& wr) {
  wr.wr_id = r.seq;
  wr.next = nullptr;
  ibv_send_wr* bad = nullptr;
  const provider::Inside inside;
  const int rc = provider::ops(qp_.verbs()->context).post_send(qp_.verbs(), &wr, &bad);
  if (rc != 0) {
    if (r.holding)
      release(r);
    return rc;
  }
  r.stage = Stage::posted;
  ++posted_;
  if (r.wr.opcode != IBV_WR_RDMA_WRITE)
    ++posted_nonwrite_;
  last_posted_ = r.seq;
  last_posted_signaled_ = all_signaled_ || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  return 0;
}

SendQueue::Step SendQueue::post(SendRequest& r, int& why) {
  ibv_send_wr wr = r.wr;
  scratch_.clear();
  if (r.announced) {
    // The data is in place; what is left is the immediate and the receive it consumes.
    wr.wr.rdma.rkey = 0;
    wr.wr.rdma.remote_addr = 0;
    wr.send_flags &= ~static_cast<unsigned>(IBV_SEND_INLINE);
  } else if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    if (r.inlined != 0)
      scratch_.push_back({reinterpret_cast<uintptr_t>(inline_store(r)), r.inlined, 0});
  } else {
    const bool incoming = reads_remote(wr.opcode);
    for (int i = 0; i < r.wr.num_sge; ++i) {
      if (r.wr.sg_list[i].length == 0)
        continue; // its key is not looked at; a reserved one might be
      ibv_sge sge = r.wr.sg_list[i];
      auto& hold = holds(r)[i];
      const int rc = qp_.regions().localize(qp_.pd(), qp_.staging(), qp_.context().copy_below(),
                                            incoming ? unsigned{IBV_ACCESS_LOCAL_WRITE} : 0U,
                                            !incoming, false, sge, hold);
      if (rc == ENOMEM) {
        release(r);
        if (observe::log_every("send-window", 10))
          observe::log_error("a request of {} bytes cannot be backed: registering its window "
                             "failed; raise RLIMIT_MEMLOCK or send less at a time",
                             sge.length);
        why = ENOMEM;
        return Step::refused;
      }
      r.holding |= static_cast<bool>(hold);
      scratch_.push_back(sge);
    }
  }
  if (r.granted != 0)
    wr.wr.atomic.rkey = r.granted;
  wr.sg_list = scratch_.data();
  wr.num_sge = static_cast<int>(scratch_.size());
  why = hand_over(r, wr);
  if (why != 0)
    return Step::refused;
  if (consumes_receive(wr.opcode))
    ++receives_;
  if (r.way == Way::offload)
    observe::count(Counter::posts_offloaded);
  return Step::issued;
}

// Staging is used up: the first bytes of the request itself serve a replay as well.
bool SendQueue::borrow_own_bytes(SendRequest& r, ibv_send_wr& wr) {
  if (r.inlined != 0) {
    wr.send_flags |= IBV_SEND_INLINE;
    scratch_.push_back({reinterpret_cast<uintptr_t>(inline_store(r)), std::min(r.inlined, 8U), 0});
    return true;
  }
  for (int i = 0; i < r.wr.num_sge; ++i) {
    ibv_sge sge = r.wr.sg_list[i];
    if (sge.length == 0)
      continue;
    sge.length = std::min(sge.length, 8U);
    auto& hold = holds(r)[0];
    const unsigned rights = reads_remote(wr.opcode) ? unsigned{IBV_ACCESS_LOCAL_WRITE} : 0U;
    if (qp_.regions().localize(qp_.pd(), qp_.staging(), 0, rights, false, false, sge, hold) != 0)
      return false;
    r.holding = static_cast<bool>(hold);
    scratch_.push_back(sge);
    return true;
  }
  return false;
}

// Makes the device itself fail the request. Where the peer refused it, a few bytes of staging go
// under the reserved key: the peer's device answers with its NAK, moves its queue pair and raises
// its event. Where our own elements are at fault, a WRITE of them as they stand fails at home,
// before anything is sent.
SendQueue::Step SendQueue::replay(SendRequest& r, int& why) {
  ibv_send_wr wr = r.wr;
  wr.send_flags &= ~static_cast<unsigned>(IBV_SEND_INLINE);
  wr.send_flags |= IBV_SEND_SIGNALED;
  scratch_.clear();
  if (r.bad_local && r.wr.opcode == IBV_WR_RDMA_READ) {
    // A device finds out when the data comes back, which here came another way.
    r.result.wc.status = IBV_WC_LOC_PROT_ERR;
    r.stage = Stage::done;
    qp_.enter_error();
    failed_ = true;
    return Step::issued;
  }
  if (r.bad_local) {
    wr.opcode = IBV_WR_RDMA_WRITE;
    scratch_.assign(r.wr.sg_list, r.wr.sg_list + r.wr.num_sge);
  } else {
    auto& hold = holds(r)[0];
    hold.block = qp_.staging().take(8);
    hold.program = nullptr;
    if (hold.block) {
      r.holding = true;
      scratch_.push_back({reinterpret_cast<uintptr_t>(hold.block.data), 8, hold.block.lkey});
    } else if (!borrow_own_bytes(r, wr)) {
      why = ENOMEM;
      return Step::refused;
    }
  }
  wr.sg_list = scratch_.data();
  wr.num_sge = static_cast<int>(scratch_.size());
  why = hand_over(r, wr);
  if (why != 0)
    return Step::refused;
  r.forced = true;
  replaying_ = true;
  blocked_on_provider_ = true;
  qp_.send_cq().request_drain();
  observe::count(Counter::replays);
  return Step::issued;
}

// The queue pair is in error: the provider completes whatever is posted with WR_FLUSH_ERR.
SendQueue::Step SendQueue::flush(SendRequest& r, int& why) {
  ibv_send_wr wr = r.wr;
  r.way = Way::flush;
  if (qp_.one_sided()) {
    wr = {};
    wr.opcode = IBV_WR_SEND;
  }
  wr.send_flags = IBV_SEND_SIGNALED;
  why = hand_over(r, wr);
  return why != 0 ? Step::refused : Step::issued;
}

// The next request goes another way than those with the provider, so their completions must be
// seen. If the last of them was not asked to report, a zero-length request that is will.
void SendQueue::wait_for_provider(const SendRequest& next) {
  blocked_on_provider_ = true;
  Cq& cq = qp_.send_cq();
  cq.request_drain();
  if (last_posted_signaled_ || marker_out_ || !cq.take_marker(qp_.verbs()->qp_num))
    return;
  ibv_send_wr wr{};
  wr.wr_id = marker_bit | last_posted_;
  // Of the kind that waits: the peer's queue pair allows that one, or refuses the request anyway.
  wr.opcode = next.wr.opcode == IBV_WR_RDMA_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  const provider::Inside inside;
  if (provider::ops(qp_.verbs()->context).post_send(qp_.verbs(), &wr, &bad) != 0) {
    cq.marker_landed(); // no room in the send queue; an older completion will come first
    return;
  }
  marker_out_ = true;
  observe::count(Counter::drains);
}

} // namespace adverb::model
