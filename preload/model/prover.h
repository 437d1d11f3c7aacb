// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How a queue pair proves to be the program's, if the peer's process demands that or has to show
// the same: a few bytes of adverb's own go through it, into or out of a slot of the peer's
// (link/proof.h). A request whose key the peer says to be virtual waits meanwhile; requests under
// the device's own keys need none of this. It begins while the link is still being made.
//
// The queue pair's lock guards all of it.
#pragma once

#include "link/links.h"
#include "queue/qp_lane.h"
#include "steering/key_verdict.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace adverb::model {

using namespace queue;

class Prover {
public:
  enum class Outcome : uint8_t {
    none,
    changed,  // what waits in the queue is to be looked at
    given_up, // the device shall judge what the peer will not serve: its NAK is the program's
              // verdict
  };
  // The queue pair. Under its lock, but for tell_prover().
  class Host {
  public:
    virtual uint64_t handle() const noexcept = 0; // of the present incarnation
    virtual std::weak_ptr<Host> weak() noexcept = 0;
    // What becomes of a question, from any thread without locks: under the queue pair's lock `tell`
    // is called if it still has that handle, and its outcome carried out.
    virtual void tell_prover(uint64_t handle, const std::function<Outcome(Prover&)>& tell) = 0;
    // A device on which no READ or atomic may be outstanding would fail it.
    virtual bool may_read() const noexcept = 0;
    // Keeps what the peer has said of a key; false: it is not linked yet.
    virtual bool learn_key(uint32_t key, steering::KeyVerdict::Kind kind) = 0;
    // The peer's CPU serves nothing of what its device may access.
    virtual void on_serves_none() noexcept = 0;

  protected:
    ~Host() = default;
  };
  // `reports_loss`: of a message that is lost the device says so, as for RC.
  Prover(World& world, Host& host, QpLane& device, link::Slots& slots, bool reports_loss) noexcept
      : world_(world), host_(host), device_(device), slots_(slots), reports_loss_(reports_loss) {}
  Prover(const Prover&) = delete;
  Prover& operator=(const Prover&) = delete;

  // Whether the peer knows that this queue pair is ours, and we that its other end is the peer's.
  bool is_proven() const noexcept { return is_proven_; }
  // Begins, or goes on, for `r`, which waits. `key`: what the peer is asked of with it, or
  // link::any_key if its CPU is to serve what is not virtual. May throw bad_alloc: `r` cannot be
  // issued.
  void prove(const steering::Request& r, uint32_t key);
  // The link has been made: what the peer has said of the key is kept.
  void learn_answer();
  // It counts as proven, or as not: what was under way is forgotten.
  void reset(bool is_proven);
  // What went through the queue pair has come to its end there.
  void on_landed(bool ok);

private:
  // `answered`: that the key needs none, to be kept when there is a link.
  enum class Stage : uint8_t { none, asked, answered, offered, carried, told, waits };

  // Calls `f`, a function of a Prover&, and what it is called with, through Host::tell_prover(),
  // unless all has been forgotten by then.
  template <typename F> auto told_to(F f);
  bool is_waiting() const noexcept;
  void limit_wait();
  Outcome look_at_wait();
  Outcome on_offer(const link::Offer& offer);
  Outcome on_proof(link::wire::Answer answer);
  void carry(const steering::Request& r);
  void tell(const link::wire::Share& read);
  void try_later(std::chrono::milliseconds delay);
  Outcome give_up();

  World& world_;
  Host& host_;
  QpLane& device_;
  link::Slots& slots_;
  const bool reports_loss_;
  bool is_proven_ = false;
  Stage stage_ = Stage::none;
  uint64_t round_ = 0;               // what is told of another one comes late
  uint64_t limit_ = 0;               // timer that looks how long requests have been waiting
  std::chrono::nanoseconds since_{}; // when they began to
  unsigned tries_ = 0;
  unsigned lost_ = 0; // were carried, and have not come
  link::Offer offer_;
  uint32_t key_ = 0;                       // that the peer is asked of with it
  steering::KeyVerdict::Kind answer_{};    // and what it has said
  std::optional<link::Slots::Slot> local_; // that the device has
};

} // namespace adverb::model
