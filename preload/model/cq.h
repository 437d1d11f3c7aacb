// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A completion queue as the program sees it: the provider's completions, translated back to the
// program's work requests, and those adverb makes itself, in one stream.
//
// A completion that the program polls for is translated where the provider has put it. What comes
// when it does not poll, or does not come one for one, waits in a ring, and is first.
//
// Locks, outermost first: reading_lock_ (between ibv_start_poll and ibv_end_poll), poll_lock_ (who
// takes completions from the provider), a queue pair's lock, ready_lock_ (leaf). The provider's CQ
// is polled in the program's calls; the service thread does it only while a request waits for an
// earlier completion and the program does not poll.
#pragma once

#include "model/cq_users.h"
#include "model/drain_pace.h"
#include "model/failed_qps.h"
#include "model/marker_slots.h"
#include "model/notifier.h"
#include "model/ready_ring.h"
#include "provider/ops.h"
#include "steering/completion.h"
#include "world/sync.h"

#include <memory>

#include <infiniband/verbs.h>

namespace adverb::model {

using steering::Completion;

class Context;

class Cq : public std::enable_shared_from_this<Cq> {
public:
  // Internal completions (markers) that may be in the CQ beside the kick's, each of another queue
  // pair: as many as there are entries for beyond the `programs`, and at most so many.
  static constexpr int markers_max = 32;
  // `wc_flags`: IBV_WC_EX_* the program asked of an extended CQ, 0 for a plain one.
  Cq(Context& context, ibv_cq* cq, uint64_t wc_flags, int programs);

  ibv_cq* verbs() const noexcept { return cq_; }
  Context& context() const noexcept { return context_; }

  // The program's calls.
  int poll(int entries, ibv_wc* wc);
  int arm(int solicited_only);
  int start_poll(ibv_poll_cq_attr* attr); // holds reading_lock_ until end_poll(), unless it fails
  int next_poll();
  void end_poll();
  const Completion& current() const noexcept { return current_; }

  // A queue pair whose completions arrive here.
  void attach(uint32_t qpn, CqUser* qp);
  // Its provider's queue pair is no more: what that has left is taken, and its number may be given
  // to the next.
  void detach(uint32_t qpn, const CqUser* qp);
  // The provider has reset it: what that has left is taken. No lock held, as above.
  void was_reset(uint32_t qpn, const CqUser* qp);
  // Takes what the provider has, so that no completion of a queue pair about to change is left.
  void settle();
  bool try_settle(); // false: somebody polls right now

  // A completion by adverb; wakes a program that sleeps on the channel. Any thread.
  void push_own(const Completion& completion);
  // One the provider has already announced.
  void push(const Completion& completion);
  // None that was pushed waits to be polled.
  bool none_ready() const noexcept { return ready_.empty(); }

  // A request waits for a completion of this queue: see to it even if the program never polls.
  void request_drain();
  // Not before the program has had time to poll.
  void request_drain_in_time();

  // The queue pair of this handle is in error as none of the program's calls made it: before the
  // program gets the completion that says so, no peer's request is served any more that has found
  // it well.
  void await_peers(uint64_t handle);

  // Destroyed: no timer of ours polls it any more when this returns.
  void close();
  void reopen(); // it could not be destroyed
  // Managed queue pairs are attached: it cannot be destroyed.
  bool in_use();

  // Makes the wake-up queue pair once the address of a port is known. No-op without a channel.
  void ensure_kick(const ibv_ah_attr& ah);
  void close_kick();
  bool owns(const ibv_qp* qp) const noexcept { return notifier_.is_kick(qp); }
  provider::CqExOps ex_ops{}; // the provider's, for an extended CQ

  // The device has given it another size, of which `programs` entries are the program's.
  void resized(int programs);
  // Completions that the program has not polled; takes what the provider has.
  bool holds_more_than(size_t count);

  // False: there is no room for a marker more, and `qpn` is next in line for it.
  bool take_marker(uint32_t qpn);
  void marker_landed();

private:
  // Takes up to `most` of the provider's; poll_lock_ held. How many: less is all there were, -1 it
  // failed.
  int absorb(int most);
  int absorb_extended(int most);
  void absorb_one(const Completion& completion);
  // poll_lock_ held, as of all that follow.
  int translate(ibv_wc* wc, int from, int count);
  int poll_further(int entries, ibv_wc* wc, int have);
  [[gnu::noinline]] int poll_other(int entries, ibv_wc* wc, int passthrough, bool told, int count);
  bool look_now() noexcept;
  [[gnu::noinline]] int look_for_messages(int entries, ibv_wc* wc, int n); // no lock held
  void pass_marker_on();                                                   // poll_lock_ held
  bool is_late(const ibv_wc& wc) const;
  void take_the_last(uint32_t qpn, const CqUser* qp, bool gone);
  void tell_errors();
  void settle_peers();
  bool pop(Completion& completion);
  int pop(int entries, ibv_wc* wc);
  bool kicked();
  void drain_after(std::chrono::microseconds delay);
  void service_drain();

  Context& context_;
  ibv_cq* cq_;
  const uint64_t wc_flags_;
  const decltype(ibv_context_ops::poll_cq) poll_cq_; // the provider's

  RecursiveMutex reading_lock_;
  Completion current_; // reading_lock_

  QuickMutex poll_lock_; // guards what follows, to ready_lock_
  CqUsers users_;
  uint8_t found_ = 0; // polls that found something
  bool closed_ = false;

  QuickMutex ready_lock_; // guards what follows, to drain_
  ReadyRing ready_;
  Notifier notifier_;
  MarkerSlots markers_;
  FailedQps failed_;

  DrainPace drain_;
};

} // namespace adverb::model
