// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How a queue pair is proven to be the program's, where the peer's process demands that or has to
// show the same: a few bytes of adverb's own go through it, into or out of a slot of the peer's
// (link/proof.h). A request whose key the peer says to be virtual waits meanwhile; those to the
// device's own keys need none of this. It begins while the link is still being made.
#include "link/links.h"
#include "model/qp.h"
#include "observe/log.h"
#include "transfer/initiator.h"
#include "world/world.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <utility>

namespace adverb::model {

using link::wire::Answer;
using steering::KeyVerdict;
using steering::Peer;

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
// Who has proven nothing is waited for no longer, whatever it has answered before: nobody knows
// that it is the other end. As long as for a bind.
constexpr std::chrono::seconds wait_due{60};

} // namespace

void Qp::forget_proof(bool proven) {
  proven_ = proven;
  ++proving_.round;
  proving_.stage = ProofStage::none;
  proving_.tries = 0;
  proving_.lost = 0;
  if (proving_.limit != 0)
    world().service.cancel(std::exchange(proving_.limit, 0));
  proving_.answer = KeyVerdict::Kind::unknown;
}

bool Qp::waits_for_proof() const noexcept {
  return proving_.stage == ProofStage::asked || proving_.stage == ProofStage::told ||
         proving_.stage == ProofStage::waits;
}

// Called when the peer is asked for something. Who has it tried anew again and again gains no time.
void Qp::limit_wait() {
  if (proving_.tries == 0)
    proving_.since = world().clock.now();
  if (proving_.limit != 0)
    return;
  proving_.limit = world().service.after(
      wait_due, [weak = weak_from_this(), handle = handle_, round = proving_.round] {
        if (const auto self = weak.lock())
          self->look_at_wait(handle, round);
      });
}

void Qp::look_at_wait(uint64_t handle, uint64_t round) {
  std::shared_ptr<transfer::Initiator> left;
  {
    const std::lock_guard hold(lock_);
    if (handle != handle_ || round != proving_.round)
      return;
    proving_.limit = 0;
    if (!waits_for_proof())
      return;
    const auto over = proving_.since + wait_due - world().clock.now();
    if (over > std::chrono::nanoseconds::zero()) {
      proving_.limit = world().service.after(over, [weak = weak_from_this(), handle, round] {
        if (const auto self = weak.lock())
          self->look_at_wait(handle, round);
      });
      return;
    }
    left = give_proof_up();
    send_.turn();
  }
  if (left)
    left->detach(handle);
}

// `key`: link::any_key if none is virtual, but the peer's CPU is to serve.
void Qp::prove(const steering::Request& r, uint32_t key) {
  if (proving_.stage == ProofStage::offered && proving_.key == key)
    return carry_proof(r);
  if (proving_.local)
    device_.wish(); // the program need not poll for it
  if (proving_.stage != ProofStage::none && proving_.stage != ProofStage::offered)
    return;
  limit_wait();
  proving_.stage = ProofStage::asked;
  proving_.key = key;
  world().links().claim(handle_, key,
                        [weak = weak_from_this(), handle = handle_,
                         round = proving_.round](const link::Offer& offer) {
                          if (const auto self = weak.lock())
                            self->on_offer(handle, round, offer);
                        });
}

// Of the key that was asked of, once there is somewhere to keep it.
void Qp::learn_answer() {
  if (peer_ != Peer::linked || proving_.answer == KeyVerdict::Kind::unknown)
    return;
  const KeyVerdict::Kind answer = std::exchange(proving_.answer, KeyVerdict::Kind::unknown);
  if (proving_.key != link::any_key)
    messages_.learn(proving_.key, answer);
  if (proving_.stage == ProofStage::answered)
    proving_.stage = ProofStage::none;
}

void Qp::on_offer(uint64_t handle, uint64_t round, const link::Offer& offer) {
  std::shared_ptr<transfer::Initiator> left;
  {
    const std::lock_guard hold(lock_);
    if (handle != handle_ || round != proving_.round || proving_.stage != ProofStage::asked)
      return;
    // A device that may have no READ or atomic outstanding would fail it.
    const bool possible = offer.kind == link::SlotKind::write || attr_.max_rd_atomic != 0;
    if (offer.answer == Answer::real_key) {
      serves_none_ = serves_none_ || proving_.key == link::any_key;
      proving_.answer = KeyVerdict::Kind::real;
      proving_.tries = 0; // what waits the next time has not waited before
      proving_.stage = ProofStage::answered;
      learn_answer();
    } else if (offer.answer == Answer::ok && possible) {
      proving_.answer = KeyVerdict::Kind::virtual_key;
      learn_answer();
      proving_.offer = offer;
      proving_.stage = ProofStage::offered;
    } else if (offer.answer == Answer::not_there) {
      try_proof_later(pause);
    } else if (offer.answer == Answer::no_resources) { // memory is short there, which may pass
      proving_.tries += tries_max / 3;
      try_proof_later(pause);
    } else if (offer.answer == Answer::no_such_qp) {
      proving_.tries = tries_max;
      try_proof_later(going);
    } else {
      left = give_proof_up();
    }
    send_.turn();
  }
  if (left)
    left->detach(handle);
}

void Qp::carry_proof(const steering::Request& r) {
  const link::Offer& offer = proving_.offer;
  if (proving_.local)
    return; // the device still has that of a round before
  link::Slots::Slot local;
  const int rc = pd_->slots->take(link::SlotKind::local, local);
  if (rc == EAGAIN) { // others are given back, by and by
    proving_.tries = std::max(proving_.tries, tries_at_once);
    return try_proof_later(pause);
  }
  if (rc != 0)
    throw std::bad_alloc(); // the request that waits cannot be issued
  pd_->slots->put(local, offer.share);
  ibv_sge element{local.address, sizeof offer.share, local.lkey};
  ibv_send_wr wr{};
  wr.sg_list = &element;
  wr.num_sge = 1;
  if (offer.kind == link::SlotKind::atomic) {
    element.length = link::slot_word_bytes;
    wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD; // of 0
    wr.wr.atomic.remote_addr = offer.address;
    wr.wr.atomic.rkey = offer.rkey;
  } else {
    wr.opcode = offer.kind == link::SlotKind::write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    wr.wr.rdma.remote_addr = offer.address;
    wr.wr.rdma.rkey = offer.rkey;
  }
  if (const int refused = device_.post_aside(r, wr); refused != 0) {
    pd_->slots->give(local);
    if (refused != EAGAIN) // a child's, on a device that its parent has opened
      throw std::bad_alloc();
    return;
  }
  proving_.local = local;
  proving_.stage = ProofStage::carried;
  // The peer looks for it a while, which is long enough for most; else it is told when it has it.
  if (offer.kind == link::SlotKind::write && proving_.tries == 0)
    tell_proof({});
}

void Qp::tell_proof(const link::wire::Share& read) {
  proving_.stage = ProofStage::told;
  world().links().prove(
      handle_, read,
      [weak = weak_from_this(), handle = handle_, round = proving_.round](Answer answer) {
        if (const auto self = weak.lock())
          self->on_proof(handle, round, answer);
      });
}

void Qp::executed_again() {
  world().counters.count(observe::Counter::reads_again);
}

void Qp::aside_landed(bool ok) {
  const link::wire::Share came = pd_->slots->look(*proving_.local);
  pd_->slots->give(*proving_.local);
  proving_.local.reset();
  const bool written = proving_.offer.kind == link::SlotKind::write;
  if (!ok && (proving_.stage == ProofStage::carried || proving_.stage == ProofStage::told)) {
    proving_.stage = ProofStage::none; // its queue pair is in ERR
  } else if (proving_.stage == ProofStage::carried && written && proving_.tries == 0) {
    try_proof_later(pause); // it was looked for too early
  } else if (proving_.stage == ProofStage::carried) {
    tell_proof(came);
  }
}

void Qp::on_proof(uint64_t handle, uint64_t round, Answer answer) {
  std::shared_ptr<transfer::Initiator> left;
  {
    const std::lock_guard hold(lock_);
    if (handle != handle_ || round != proving_.round || proving_.stage != ProofStage::told)
      return;
    if (answer == Answer::ok) {
      learn_answer();
      forget_proof(true);
    } else if (answer == Answer::not_there &&
               !(type_ == IBV_QPT_UC && ++proving_.lost == lost_max)) {
      if (proving_.local)
        proving_.stage = ProofStage::carried; // once it is there
      else
        try_proof_later(pause);
    } else
      left = give_proof_up();
    send_.turn();
  }
  if (left)
    left->detach(handle);
}

void Qp::try_proof_later(std::chrono::milliseconds delay) {
  proving_.stage = ProofStage::none;
  if (++proving_.tries <= tries_at_once)
    return;
  proving_.stage = ProofStage::waits;
  world().service.after(delay, [weak = weak_from_this(), handle = handle_, round = proving_.round] {
    const auto self = weak.lock();
    if (!self)
      return;
    std::shared_ptr<transfer::Initiator> left;
    {
      const std::lock_guard hold(self->lock_);
      Proving& proving = self->proving_;
      if (handle != self->handle_ || round != proving.round || proving.stage != ProofStage::waits)
        return;
      proving.stage = ProofStage::none;
      if (proving.tries > tries_max)
        left = self->give_proof_up();
      self->send_.turn();
    }
    if (left)
      left->detach(handle);
  });
}

// The device shall judge what the peer will not serve: its NAK is the program's verdict. The caller
// detaches from what is returned.
std::shared_ptr<transfer::Initiator> Qp::give_proof_up() {
  if (proving_.key == link::any_key) { // nothing but steering has asked for it
    serves_none_ = true;
    forget_proof(false);
    return nullptr;
  }
  if (world().log.every("unproven", 5))
    world().log.warn("queue pair {} and its peer could not prove themselves to each other; the "
                     "peer's unpinned regions cannot be reached; the peer's log may say why",
                     qpn_);
  peer_ = Peer::stock;
  forget_proof(false);
  world().links().unbind(handle_);
  return messages_.leave();
}

} // namespace adverb::model
