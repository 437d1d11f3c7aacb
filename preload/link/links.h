// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Finds the peer process of a queue pair and binds the two: directory of this process's queue
// pairs, control connections in both directions, companion queue pairs.
//
// A link is directional: the process that initiates operations opens it and sends requests; the
// peer's own requests travel over a link of its own. So nothing has to be agreed between two sides
// that start at once, and a process linked to itself is no special case.
#pragma once

#include "link/channel.h"
#include "link/local_qp.h"
#include "link/slots.h"
#include "link/wire.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <infiniband/verbs.h>

namespace adverb::link {

enum class Verdict : uint8_t { adverb, stock, refused };

struct Bound {
  Verdict verdict = Verdict::stock;
  std::shared_ptr<Channel> channel;
  uint64_t remote_handle = 0;
  std::string reason;
  bool host_known = false; // some process of the peer's host has answered as adverb
  // The peer asks for no proof that the queue pair is ours, and needs none itself: it serves what
  // is asked for it. Else Links::claim() and prove() come first.
  bool proven = false;
};

// A slot of the peer's, or why there is none.
struct Offer {
  wire::Answer answer = wire::Answer::refused; // not_there: later, perhaps
  SlotKind kind = SlotKind::none;              // to be written, or to be read
  uint32_t rkey = 0;
  uint64_t address = 0;
  wire::Share share{}; // what is to be written
};

// Of a claim: no key of the peer's is meant, and the queue pair is to be proven all the same.
inline constexpr uint32_t any_key = 0;

// World::links(), where the room that has a protocol makes them (socket_links.h).
class Links {
public:
  virtual ~Links() = default;

  // All thread-safe.

  // Channels may be opened for this protocol from now on, by this process and by its peers; the
  // first one of an id stays.
  virtual void serve(std::shared_ptr<Protocol> protocol) = 0;

  // publish() returns when the host's broker can find the queue pair: a peer told of it afterwards
  // does find it. connected() at RTR; withdraw() when it is destroyed or at RESET, no sooner: who
  // is told that nobody has it gives his request to the device.
  virtual void publish(const LocalQp& qp) = 0;
  virtual void connected(const LocalQp& qp) = 0;
  virtual void withdraw(uint32_t qpn, uint64_t handle) = 0;

  // Asks the peer of a connected queue pair, and for a channel of the protocol served under that
  // id. `done` is called once on the service thread, unless cancel_bind() comes first.
  virtual void bind(const LocalQp& qp, uint8_t protocol, std::function<void(Bound)> done) = 0;
  virtual void cancel_bind(uint64_t handle) = 0;
  // Whether a channel of that protocol has been open on the queue pair's path before: then it may
  // be asked for ahead. Others cost memory of both sides that a program which only sends has no use
  // for.
  virtual bool has_met(const LocalQp& qp, uint8_t protocol) const = 0;
  // How a queue pair is proven to be ours, and the peer's to be the one we mean: claim() asks the
  // peer for a slot, as `key` is to be used, which may be the device's own (`real_key`). The queue
  // pair writes it, or reads it, and prove() has the peer look: at once where it is written, for
  // the peer looks for a while; after it, with what was `read`. claim() may come as soon as bind()
  // was called. Each calls back once on the service thread, with `not_there` where it may be tried
  // anew, unless the queue pair is unbound, or bound and needs none of it, or its channel ends
  // before.
  virtual void claim(uint64_t handle, uint32_t key, std::function<void(const Offer&)> offered) = 0;
  virtual void prove(uint64_t handle, const wire::Share& read,
                     std::function<void(wire::Answer)> done) = 0;
  // Nothing of that queue pair is under way any more, on the device either, and it asks for nothing
  // more: the peer hears of it, who ends what it may do there and takes back what it was lent.
  virtual void unbind(uint64_t handle) = 0;
  // Asks only whether the peer runs adverb and owns the connected queue pair: no channel is made.
  // It goes on when the queue pair is destroyed.
  virtual void probe(const LocalQp& qp, std::function<void(Bound)> done) = 0;

  // What all channels of a device share; nullptr when adverb cannot use the device.
  virtual std::shared_ptr<Progress> progress(ibv_device* device) = 0;

  // At the end of a process: waits a moment for the answers to its probes, so that what they have
  // to say is said. At once where no probe is under way. What was counted of peers is written.
  virtual void await_probes() noexcept = 0;
};

} // namespace adverb::link
