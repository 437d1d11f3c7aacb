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

#include "model/kick.h"
#include "provider/ops.h"
#include "queue/bare.h"
#include "steering/completion.h"
#include "world/sync.h"

#include <array>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::model {

using namespace queue;

using steering::Completion;

class Context;
class Cq;

// A queue pair whose completions arrive at a CQ; every call is under the CQ's poll_lock_.
class CqUser {
public:
  CqUser(BareRequests& bare, bool other_number) noexcept : bare(bare), other_number(other_number) {}
  BareRequests& bare;      // of these only failures are told, and what on_completion_polled() says
  const bool other_number; // its completions may name another queue pair's
  // One of those has succeeded, and is the program's; what is pushed now comes behind it.
  virtual void bare_landed() = 0;

  // What the program is to get of it is pushed to `cq`.
  virtual void on_completion(const Completion& completion, Cq& cq) = 0;
  // The same while the program polls `cq`. True: `wc` itself has become what the program is to get,
  // and what was pushed meanwhile comes behind it.
  virtual bool take(ibv_wc& wc, Cq& cq) = 0;
  // One of its requests waits for a completion.
  virtual bool waits_for_completion() = 0;
  virtual void try_again() = 0; // there is room for a marker
  // Of the requests it has posted to the provider.
  struct Numbers {
    uint64_t from = 0;
    uint64_t end = 0;
  };
  virtual Numbers numbers() = 0;
  // With other_number: whether the completion, which names no queue pair that is attached, is of
  // one of its requests or receives.
  virtual bool posted(const ibv_wc& wc) = 0;

protected:
  ~CqUser() = default;
};

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
  bool none_ready() const noexcept { return ready_count_.load(std::memory_order_acquire) == 0; }

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
  bool owns(const ibv_qp* qp) const noexcept { return kick_.is(qp); }
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
  [[gnu::noinline]] int poll_other(int entries, ibv_wc* wc, int bare, bool told, int count);
  bool look_now() noexcept;
  [[gnu::noinline]] int look_for_messages(int entries, ibv_wc* wc, int n); // no lock held
  CqUser* user_of(uint32_t qpn);            // null: no queue pair that is managed
  void pass_marker_on();                    // poll_lock_ held
  CqUser* user_by_number(const ibv_wc& wc); // the same
  bool is_late(const ibv_wc& wc) const;
  void take_the_last(uint32_t qpn, const CqUser* qp, bool gone);
  bool holds(uint32_t qpn);
  void discard(uint32_t qpn);
  void tell_errors();
  void settle_peers();
  bool pop(Completion& completion);
  int pop(int entries, ibv_wc* wc);
  void grow(size_t capacity);
  void append(const Completion& completion);
  void wake(bool error); // ready_lock_ held
  void wake_again();     // the same
  bool kicked();
  void drain_after(std::chrono::microseconds delay);
  void service_drain();

  Context& context_;
  ibv_cq* cq_;
  const uint64_t wc_flags_;
  const decltype(ibv_context_ops::poll_cq) poll_cq_; // the provider's

  RecursiveMutex reading_lock_;
  QuickMutex poll_lock_;
  struct Attached {
    CqUser* qp;
  };
  std::unordered_map<uint32_t, Attached> qps_; // poll_lock_
  bool other_numbers_ = false;                 // poll_lock_: some of them may come under others
  // Those of them that were looked for last, by the low bits of their number.
  struct alignas(32) Seen {
    uint32_t qpn = UINT32_MAX;
    CqUser* user = nullptr;
    BareRequests* bare = nullptr;
  };
  static constexpr uint32_t seen_max = 16;
  std::array<Seen, seen_max> seen_; // poll_lock_
  // The last that were detached. No completion of theirs is the program's, and none that another
  // queue pair has under their number is taken for one.
  struct Gone {
    uint32_t qpn = 0;
    CqUser::Numbers numbers;
  };
  std::array<Gone, 16> gone_; // poll_lock_
  size_t next_gone_ = 0;
  Completion current_; // reading_lock_

  QuickMutex ready_lock_;
  std::vector<Completion> ready_; // ring
  size_t ready_head_ = 0;
  Atomic<size_t> ready_count_{0}; // written under ready_lock_
  bool armed_ = false;            // for any completion
  bool armed_solicited_ = false;  // for solicited ones and errors
  bool missed_ = false;           // a kick for the former was left to one that was out
  bool missed_error_ = false;     // for the latter
  Kick kick_;
  std::optional<ibv_ah_attr> kick_path_; // once it was made
  int marker_room_ = 1;
  int markers_out_ = 0;
  std::vector<uint32_t> marker_waiters_;  // queue pair numbers, in the order they came
  Atomic<bool> marker_waited_for_{false}; // somebody is among them; written under ready_lock_

  uint8_t found_ = 0;                // poll_lock_: polls that found something
  bool closed_ = false;              // poll_lock_
  Atomic<bool> awaits_peers_{false}; // written under ready_lock_
  struct Fallen {                    // queue pairs; under ready_lock_
    uint64_t handle = 0;             // of the last one
    uint32_t count = 0;
    bool several = false; // of them, others too, and not settled
  } fallen_;
  Atomic<bool> drain_wanted_{false};
  Atomic<bool> drain_timer_{false};
  Atomic<unsigned> drain_round_{0};
};

} // namespace adverb::model
