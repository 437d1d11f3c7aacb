// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/prover.h"
#include "world/world.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

namespace adverb::model {

using link::wire::Answer;
using steering::KeyVerdict;

namespace {

// The peer has no slot just now, or nothing has come: at once, then with pauses, for about as
// long as a bind may take.
constexpr unsigned tries_at_once = 3;
constexpr unsigned tries_max = 600;
// Of UC nobody says that a message was lost; and a program that uses it can do without one.
constexpr unsigned lost_max = 3;
constexpr std::chrono::milliseconds pause{100};
// The peer's queue pair is being destroyed or reset, and its device has it for an instant yet: that
// would answer with a NAK for the reserved key where a stock program sees its peer vanish.
constexpr std::chrono::milliseconds going{500};
// A peer that has proven nothing is waited for no longer, whatever it has answered before: nobody
// knows that it is the other end. As long as for a bind.
constexpr std::chrono::seconds wait_due{60};

} // namespace

template <typename F> auto Prover::told_to(F f) {
  return [weak = host_.weak(), handle = host_.handle(), round = round_, f](const auto&... what) {
    if (const auto host = weak.lock())
      host->tell_prover(handle, [&](Prover& self) {
        return self.round_ == round ? f(self, what...) : Outcome::none;
      });
  };
}

void Prover::reset(bool is_proven) {
  is_proven_ = is_proven;
  ++round_;
  stage_ = Stage::none;
  tries_ = 0;
  lost_ = 0;
  if (limit_ != 0)
    world_.service.cancel(std::exchange(limit_, 0));
  answer_ = KeyVerdict::Kind::unknown;
}

bool Prover::is_waiting() const noexcept {
  return stage_ == Stage::asked || stage_ == Stage::told || stage_ == Stage::waits;
}

// Called when the peer is asked for something. Who has it tried anew again and again gains no time.
void Prover::limit_wait() {
  if (tries_ == 0)
    since_ = world_.clock.now();
  if (limit_ == 0)
    limit_ =
        world_.service.after(wait_due, told_to([](Prover& self) { return self.look_at_wait(); }));
}

Prover::Outcome Prover::look_at_wait() {
  limit_ = 0;
  if (!is_waiting())
    return Outcome::none;
  const auto over = since_ + wait_due - world_.clock.now();
  if (over <= std::chrono::nanoseconds::zero())
    return give_up();
  limit_ = world_.service.after(over, told_to([](Prover& self) { return self.look_at_wait(); }));
  return Outcome::none;
}

void Prover::prove(const steering::Request& r, uint32_t key) {
  if (stage_ == Stage::offered && key_ == key)
    return carry(r);
  if (local_)
    device_.wish(); // the program need not poll for it
  if (stage_ != Stage::none && stage_ != Stage::offered)
    return;
  limit_wait();
  stage_ = Stage::asked;
  key_ = key;
  world_.links().claim(host_.handle(), key, told_to([](Prover& self, const link::Offer& offer) {
                         return self.on_offer(offer);
                       }));
}

void Prover::learn_answer() {
  if (answer_ == KeyVerdict::Kind::unknown)
    return;
  if (!host_.learn_key(key_, answer_))
    return;
  answer_ = KeyVerdict::Kind::unknown;
  if (stage_ == Stage::answered)
    stage_ = Stage::none;
}

Prover::Outcome Prover::on_offer(const link::Offer& offer) {
  if (stage_ != Stage::asked)
    return Outcome::none;
  const bool is_possible = offer.kind == link::SlotKind::write || host_.may_read();
  if (offer.answer == Answer::real_key) {
    if (key_ == link::any_key)
      host_.on_serves_none();
    answer_ = KeyVerdict::Kind::real;
    tries_ = 0; // what waits the next time has not waited before
    stage_ = Stage::answered;
    learn_answer();
  } else if (offer.answer == Answer::ok && is_possible) {
    answer_ = KeyVerdict::Kind::virtual_key;
    learn_answer();
    offer_ = offer;
    stage_ = Stage::offered;
  } else if (offer.answer == Answer::not_there) {
    try_later(pause);
  } else if (offer.answer == Answer::no_resources) { // memory is short there, which may pass
    tries_ += tries_max / 3;
    try_later(pause);
  } else if (offer.answer == Answer::no_such_qp) {
    tries_ = tries_max;
    try_later(going);
  } else {
    return give_up();
  }
  return Outcome::changed;
}

void Prover::carry(const steering::Request& r) {
  if (local_)
    return; // the device still has that of a round before
  link::Slots::Slot local;
  const int rc = slots_.take(link::SlotKind::local, local);
  if (rc == EAGAIN) { // others are given back, by and by
    tries_ = std::max(tries_, tries_at_once);
    return try_later(pause);
  }
  if (rc != 0)
    throw std::bad_alloc(); // the request that waits cannot be issued
  slots_.put(local, offer_.share);
  ibv_sge element{local.address, sizeof offer_.share, local.lkey};
  ibv_send_wr wr{};
  wr.sg_list = &element;
  wr.num_sge = 1;
  if (offer_.kind == link::SlotKind::atomic) {
    element.length = link::slot_word_bytes;
    wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD; // of 0
    wr.wr.atomic.remote_addr = offer_.address;
    wr.wr.atomic.rkey = offer_.rkey;
  } else {
    wr.opcode = offer_.kind == link::SlotKind::write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    wr.wr.rdma.remote_addr = offer_.address;
    wr.wr.rdma.rkey = offer_.rkey;
  }
  if (const int refused = device_.post_aside(r, wr); refused != 0) {
    slots_.give(local);
    if (refused != EAGAIN) // a child's, on a device that its parent has opened
      throw std::bad_alloc();
    return;
  }
  local_ = local;
  stage_ = Stage::carried;
  // The peer looks for it a while, which is long enough for most; else it is told when it has it.
  if (offer_.kind == link::SlotKind::write && tries_ == 0)
    tell({});
}

void Prover::tell(const link::wire::Share& read) {
  stage_ = Stage::told;
  world_.links().prove(host_.handle(), read,
                       told_to([](Prover& self, Answer answer) { return self.on_proof(answer); }));
}

void Prover::on_landed(bool ok) {
  const link::wire::Share came = slots_.look(*local_);
  slots_.give(*local_);
  local_.reset();
  const bool written = offer_.kind == link::SlotKind::write;
  if (!ok && (stage_ == Stage::carried || stage_ == Stage::told)) {
    stage_ = Stage::none; // its queue pair is in ERR
  } else if (stage_ == Stage::carried && written && tries_ == 0) {
    try_later(pause); // it was looked for too early
  } else if (stage_ == Stage::carried) {
    tell(came);
  }
}

Prover::Outcome Prover::on_proof(Answer answer) {
  if (stage_ != Stage::told)
    return Outcome::none;
  if (answer == Answer::ok) {
    learn_answer();
    reset(true);
    return Outcome::changed;
  }
  const bool is_lost = !reports_loss_ && answer == Answer::not_there && ++lost_ == lost_max;
  if (answer != Answer::not_there || is_lost)
    return give_up();
  if (local_)
    stage_ = Stage::carried; // once it is there
  else
    try_later(pause);
  return Outcome::changed;
}

void Prover::try_later(std::chrono::milliseconds delay) {
  stage_ = Stage::none;
  if (++tries_ <= tries_at_once)
    return;
  stage_ = Stage::waits;
  world_.service.after(delay, told_to([](Prover& self) {
                         if (self.stage_ != Stage::waits)
                           return Outcome::none;
                         self.stage_ = Stage::none;
                         return self.tries_ > tries_max ? self.give_up() : Outcome::changed;
                       }));
}

Prover::Outcome Prover::give_up() {
  const bool for_steering = key_ == link::any_key; // nothing else has asked for it
  if (for_steering)
    host_.on_serves_none();
  reset(false);
  return for_steering ? Outcome::changed : Outcome::given_up;
}

} // namespace adverb::model
