// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/cq.h"
#include "model/context.h"
#include "observe/counters.h"
#include "world/no_cancel.h"
#include "world/world.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

namespace adverb::model {

using observe::Counter;

namespace {
constexpr size_t ready_at_first = 4;
} // namespace

Cq::Cq(Context& context, ibv_cq* cq, uint64_t wc_flags, int programs)
    : context_(context), cq_(cq), wc_flags_(wc_flags),
      poll_cq_(context.world().provider.ops(cq->context).poll_cq),
      ready_(std::min(static_cast<size_t>(cq->cqe) + 1, ready_at_first)),
      notifier_(context.world()) {
  resized(programs);
}

void Cq::push(const Completion& completion) {
  const std::lock_guard hold(ready_lock_);
  ready_.append(completion);
}

void Cq::push_own(const Completion& completion) {
  const std::lock_guard hold(ready_lock_);
  ready_.append(completion);
  notifier_.wake(completion.wc.status != IBV_WC_SUCCESS);
}

bool Cq::pop(Completion& completion) {
  if (none_ready())
    return false;
  const std::lock_guard hold(ready_lock_);
  return ready_.take(completion);
}

int Cq::pop(int entries, ibv_wc* wc) {
  if (none_ready())
    return 0;
  // The program's array may be slow to come, too; who completes requests does not wait for that.
  std::array<ibv_wc, 16> some; // NOLINT: set one by one
  int all = 0;
  for (size_t n = some.size(); n == some.size();) {
    {
      const size_t room = std::min(static_cast<size_t>(std::max(entries - all, 0)), some.size());
      const std::lock_guard hold(ready_lock_);
      n = ready_.take(std::span(some).first(room));
    }
    std::copy_n(some.begin(), n, wc + all);
    all += static_cast<int>(n);
  }
  return all;
}

void Cq::absorb_one(const Completion& c) {
  if (CqUser* const user = users_.find(c.wc.qp_num)) {
    user->on_completion(c, *this);
    return;
  }
  {
    const std::lock_guard hold(ready_lock_);
    if (notifier_.take(c.wc, !ready_.empty())) {
      context_.world().counters.count(Counter::markers);
      return;
    }
  }
  if (CqUser* const user = users_.find_by_request(c.wc))
    user->on_completion(c, *this);
  else if (!is_late(c.wc))
    push(c);
}

int Cq::absorb_extended(int most) {
  auto* ex = reinterpret_cast<ibv_cq_ex*>(cq_);
  ibv_poll_cq_attr attr{};
  int rc = ex_ops.start_poll(ex, &attr);
  if (rc != 0)
    return rc == ENOENT ? 0 : -1;
  int taken = 0;
  do {
    Completion c;
    c.wc.wr_id = ex->wr_id;
    c.wc.status = ex->status;
    c.wc.opcode = ex_ops.read_opcode(ex);
    c.wc.vendor_err = ex_ops.read_vendor_err(ex);
    c.wc.wc_flags = ex_ops.read_wc_flags(ex);
    const auto read = [&](uint64_t flag, auto function, auto& into) {
      if ((wc_flags_ & flag) != 0 && function != nullptr)
        into = function(ex);
    };
    read(IBV_WC_EX_WITH_BYTE_LEN, ex_ops.read_byte_len, c.wc.byte_len);
    read(IBV_WC_EX_WITH_IMM, ex_ops.read_imm_data, c.wc.imm_data);
    read(IBV_WC_EX_WITH_SRC_QP, ex_ops.read_src_qp, c.wc.src_qp);
    read(IBV_WC_EX_WITH_SLID, ex_ops.read_slid, c.wc.slid);
    read(IBV_WC_EX_WITH_SL, ex_ops.read_sl, c.wc.sl);
    read(IBV_WC_EX_WITH_DLID_PATH_BITS, ex_ops.read_dlid_path_bits, c.wc.dlid_path_bits);
    read(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, ex_ops.read_completion_ts, c.timestamp);
    read(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, ex_ops.read_completion_wallclock_ns,
         c.wallclock);
    read(IBV_WC_EX_WITH_CVLAN, ex_ops.read_cvlan, c.cvlan);
    read(IBV_WC_EX_WITH_FLOW_TAG, ex_ops.read_flow_tag, c.flow_tag);
    if ((wc_flags_ & IBV_WC_EX_WITH_TM_INFO) != 0 && ex_ops.read_tm_info != nullptr)
      ex_ops.read_tm_info(ex, &c.tm);
    // Asked for at creation whatever the program wanted: adverb cannot tell queue pairs apart else.
    c.wc.qp_num = ex_ops.read_qp_num(ex);
    absorb_one(c);
    ++taken;
    rc = taken < most ? ex_ops.next_poll(ex) : ENOENT;
  } while (rc == 0);
  ex_ops.end_poll(ex);
  pass_marker_on();
  return rc == ENOENT ? taken : -1;
}

int Cq::absorb(int most) {
  // The plain poll tells all but these; and librxe 44 repeats completions when an extended poll is
  // ended after the queue ran empty, which the extended interface asks for.
  constexpr uint64_t extended_only =
      IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK |
      IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_TM_INFO;
  if (ex_ops.start_poll != nullptr && (wc_flags_ & extended_only) != 0)
    return absorb_extended(most);
  std::array<ibv_wc, 16> batch;
  int taken = 0;
  while (taken < most) {
    const int ask = std::min<int>(most - taken, batch.size());
    const int got = poll_cq_(cq_, ask, batch.data());
    if (got < 0)
      return -1;
    for (int i = 0; i < got; ++i) {
      Completion c;
      c.wc = batch[static_cast<size_t>(i)];
      absorb_one(c);
    }
    taken += got;
    if (got < ask)
      break;
  }
  pass_marker_on();
  return taken;
}

// What was taken is about to be told. No lock is held: a peer's request that is waited for may
// sleep at a page, and others need this queue.
inline void Cq::tell_errors() {
  if (failed_.any()) [[unlikely]]
    settle_peers();
}

// Others that poll meanwhile do the same: nobody is told before.
void Cq::settle_peers() {
  std::unique_lock hold(ready_lock_);
  const FailedQps::Seen seen = failed_.seen();
  hold.unlock();
  context_.barrier({.target = seen.handle});
  hold.lock();
  failed_.settled(seen); // if it was not one more, which the next poll sees to
}

void Cq::await_peers(uint64_t handle) {
  const std::lock_guard hold(ready_lock_);
  failed_.add(handle);
}

// Of `count` that the provider has just put there: how many are the program's now, to the front.
// The others were pushed, or are adverb's own. The first `n` are done with.
int Cq::translate(ibv_wc* wc, int n, int count) {
  for (int i = n; i < count; ++i) {
    CqUser* const user = users_.find(wc[i].qp_num);
    if (user != nullptr && user->take(wc[i], *this)) [[likely]] {
      if (n != i)
        wc[n] = wc[i];
      ++n;
    } else if (user == nullptr) {
      Completion c;
      c.wc = wc[i];
      absorb_one(c);
    }
  }
  pass_marker_on();
  return n;
}

// Holds poll_lock_, and lets it go. The first `passthrough` of `count` are that, and if `told`,
// the queue pair of the last of these is to be told; the rest may be anything.
int Cq::poll_other(int entries, ibv_wc* wc, int passthrough, bool told, int count) {
  const NoCancel whole; // what waits for these is posted, and registered for
  int n = passthrough;
  bool look = false;
  {
    const std::lock_guard hold(poll_lock_, std::adopt_lock);
    if (told)
      users_.find(wc[passthrough - 1].qp_num)->passthrough_landed();
    if (passthrough != count)
      n = translate(wc, passthrough, count);
    if (n != entries && (count == entries || !none_ready()))
      n = poll_further(entries, wc, n);
    look = n == 0 || (n > 0 && look_now());
  }
  if (look)
    return look_for_messages(entries, wc, n);
  if (n > 0)
    tell_errors();
  return n;
}

// Messages are looked for when there is nothing else, and now and then when there always is.
inline bool Cq::look_now() noexcept {
  constexpr unsigned seldom = 16;
  return (found_ += 256 / seldom) == 0;
}

// Those at the front that passed through and have succeeded are the program's as they are, and
// nothing on their way throws: what takes more is a call that is the last.
int Cq::poll(int entries, ibv_wc* wc) {
  poll_lock_.lock();
  const int got = poll_cq_(cq_, entries, wc);
  // Looked for now, not before: what their queue pair had pushed when these were posted is first.
  if (!none_ready()) [[unlikely]]
    return poll_other(entries, wc, 0, false, std::max(got, 0));
  if (got <= 0) {
    poll_lock_.unlock();
    return got < 0 ? got : look_for_messages(entries, wc, 0);
  }
  int n = 0;
  do {
    if (wc[n].status != IBV_WC_SUCCESS || !is_passthrough(wc[n].wr_id)) [[unlikely]]
      return poll_other(entries, wc, n, false, got);
    const CqUsers::Recent& user = users_.recent(wc[n].qp_num);
    if (user.qpn != wc[n].qp_num) [[unlikely]]
      return poll_other(entries, wc, n, false, got);
    ++n;
    if (!user.passthrough->on_completion_polled()) [[unlikely]]
      return poll_other(entries, wc, n, true, got);
  } while (n != got);
  if (got != entries && !none_ready()) [[unlikely]]
    return poll_other(entries, wc, got, false, got);
  if (look_now()) [[unlikely]] {
    poll_lock_.unlock();
    return look_for_messages(entries, wc, got);
  }
  return poll_lock_.unlock_and(got);
}

// `n` are there.
int Cq::look_for_messages(int entries, ibv_wc* wc, int n) {
  context_.progress();
  if (n == 0 && !none_ready()) {
    const NoCancel whole;
    const std::lock_guard hold(poll_lock_);
    n = poll_further(entries, wc, 0);
  }
  if (n > 0)
    tell_errors();
  return n;
}

// Fewer than asked for says that the queue is empty, and some programs sleep then: what the
// provider gave may all have been adverb's own. `n` are there.
int Cq::poll_further(int entries, ibv_wc* wc, int n) {
  for (bool more = true;;) {
    const int popped = pop(entries - n, wc + n);
    n += popped;
    if (n >= entries) {
      // One look at the provider is due while a kick is out: its completion must not pile up under
      // a program that takes one completion per wake-up.
      if (popped != 0 && kicked())
        absorb(1);
      return n;
    }
    if (!more)
      return n;
    const int got = absorb(entries - n);
    if (got < 0) {
      n += pop(entries - n, wc + n);
      return n == 0 ? -1 : n;
    }
    more = got == entries - n;
  }
}

int Cq::arm(int solicited_only) {
  const NoCancel whole;
  const int rc = context_.world().provider.ops(cq_->context).req_notify_cq(cq_, solicited_only);
  if (rc != 0)
    return rc;
  bool kicked = false;
  {
    const std::lock_guard ready(ready_lock_);
    notifier_.arm(solicited_only != 0);
    kicked = notifier_.kick_is_out();
  }
  // A kick that landed before this arm will not fire it: take it, so that the next one is sent. A
  // kick still on its way fires it when it lands.
  if (kicked) {
    const std::lock_guard hold(poll_lock_);
    absorb(cq_->cqe + 2);
  }
  context_.rest();
  return 0;
}

int Cq::start_poll(ibv_poll_cq_attr* attr) {
  if (attr->comp_mask != 0)
    return EINVAL;
  context_.progress();
  std::unique_lock hold(reading_lock_);
  const int rc = next_poll();
  if (rc == 0)
    hold.release(); // end_poll() unlocks
  return rc;
}

int Cq::next_poll() {
  constexpr int some = 16;
  for (int got = some; !pop(current_);) {
    if (got < some)
      return got < 0 ? EIO : ENOENT;
    const std::lock_guard hold(poll_lock_);
    got = absorb(some);
  }
  tell_errors();
  auto* ex = reinterpret_cast<ibv_cq_ex*>(cq_);
  ex->wr_id = current_.wc.wr_id;
  ex->status = current_.wc.status;
  return 0;
}

void Cq::end_poll() {
  reading_lock_.unlock();
}

bool Cq::holds_more_than(size_t count) {
  settle();
  return ready_.size() > count;
}

// Others than the program's own calls on it come here, too, with what they found a moment ago: the
// provider may have destroyed it since, and have made another in its place.
void Cq::settle() {
  const std::lock_guard hold(poll_lock_);
  if (!closed_)
    absorb(cq_->cqe + 2);
}

bool Cq::try_settle() {
  if (!poll_lock_.try_lock())
    return false;
  const std::lock_guard hold(poll_lock_, std::adopt_lock);
  if (!closed_)
    absorb(cq_->cqe + 2);
  return true;
}

void Cq::close() {
  const std::lock_guard hold(poll_lock_);
  closed_ = true;
}

void Cq::reopen() {
  const std::lock_guard hold(poll_lock_);
  closed_ = false;
  if (const ibv_ah_attr* const path = notifier_.path())
    ensure_kick(*path);
}

} // namespace adverb::model
