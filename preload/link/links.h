// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Finds the peer process of a queue pair and binds the two: directory of this process's queue
// pairs, control connections in both directions, companion queue pairs.
//
// A link is directional: the process that initiates operations opens it and sends requests; the
// peer's own requests travel over a link of its own. So nothing has to be agreed between two sides
// that start at once, and a process linked to itself is no special case.
#pragma once

#include "link/channel.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <infiniband/verbs.h>

namespace adverb::link {

struct LocalQp {
  ibv_device* device = nullptr;
  uint32_t qpn = 0;
  uint64_t handle = 0; // of this queue pair's present incarnation, never reused
  uint8_t type = 0;    // ibv_qp_type
  // From RTR on:
  bool connected = false;
  uint32_t dest_qpn = 0;
  ibv_ah_attr ah{}; // the program's path: GIDs or LIDs, port
  ibv_gid sgid{};
  ibv_mtu mtu = IBV_MTU_1024;
  uint32_t rq_psn = 0;
  uint8_t timeout = 0;
  uint8_t retry_cnt = 0;
};

enum class Verdict : uint8_t { adverb, stock, refused };

struct Bound {
  Verdict verdict = Verdict::stock;
  std::shared_ptr<Channel> channel;
  uint64_t remote_handle = 0;
  std::string reason;
  bool host_known = false; // some process of the peer's host has answered as adverb
};

class Links {
public:
  static Links& get();

  // All thread-safe. publish() returns when the host's broker can find the queue pair: a peer told
  // of it afterwards does find it. connected() at RTR; withdraw() at destroy and RESET.
  void publish(const LocalQp& qp);
  void connected(const LocalQp& qp);
  void withdraw(uint32_t qpn, ibv_device* device, uint64_t handle);

  // Asks the peer of a connected queue pair. `done` is called once on the service thread, unless
  // cancel_bind() comes first.
  void bind(const LocalQp& qp, std::function<void(Bound)> done);
  void cancel_bind(uint64_t handle);
  // Asks only whether the peer runs adverb and owns the connected queue pair: no channel is made.
  // It goes on when the queue pair is destroyed.
  void probe(const LocalQp& qp, std::function<void(Bound)> done);

private:
  friend void await_probes() noexcept;
  void await_probes();

  struct State;
  explicit Links(State* state) : state_(state) {}
  State* state_;
};

// At the end of a process: waits a moment for the answers to its probes, so that what they have to
// say is said. At once where no probe is under way.
void await_probes() noexcept;

// In a fork child: closes the parent's descriptors and forgets all links.
void after_fork_child();

} // namespace adverb::link
