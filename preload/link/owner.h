// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The owner's side of links: answers peers that ask for queue pairs of this process.
#pragma once

#include "link/companion_charges.h"
#include "link/connection.h"
#include "link/device.h"
#include "link/directory.h"
#include "link/peers.h"
#include "link/protocols.h"
#include "link/qp_holders.h"
#include "link/slots.h"
#include "link/waiting_binds.h"

#include <deque>
#include <map>
#include <memory>
#include <set>

namespace adverb {
class World;
}

namespace adverb::link {

class Companion;

// owner_parts.h
namespace owning {
struct Link;
} // namespace owning

// Service thread only.
class Owner {
public:
  Owner(World& world, Directory& directory, Devices& devices, const Protocols& protocols,
        const wire::Id& process, Peers& peers)
      : world_(world), directory_(directory), devices_(devices), protocols_(protocols),
        process_(process), peers_(peers) {}

  void accept(int fd, const wire::Hello& hello);
  // A queue pair of this process has reached RTR: binds that waited for that number are looked at.
  void retry_waiting(uint32_t qpn);
  // What there is of each link (Peers::make()).
  void collect();

private:
  using Link = owning::Link;
  bool admits(int fd) const;
  void on_frame(const std::shared_ptr<Link>& link, const wire::Frame& frame);
  bool is_here(const wire::Bind& bind) const;
  void on_bind(const std::shared_ptr<Link>& link, const wire::Bind& bind, bool probe);
  void unbind(const std::shared_ptr<Link>& link, uint64_t peers);
  static void part(const std::shared_ptr<Link>& link, uint64_t peers);
  void answer(const std::shared_ptr<Link>& link, const wire::Bind& bind, bool probe,
              wire::Answer answer, const LocalQp& qp);
  void look_if_idle(const std::shared_ptr<Link>& link);
  void forget_waiting(const std::shared_ptr<Link>& link);
  void lost(const std::shared_ptr<Link>& link, const char* why);
  wire::Answer resume(const std::shared_ptr<Link>& link, const wire::Id& ticket);
  void wait_for(const std::shared_ptr<Link>& link, const wire::Bind& bind, bool probe,
                wire::Answer so_far);
  void wait_no_more(uint64_t wait);
  void on_companion(const std::shared_ptr<Link>& link, const wire::Companion& request);
  void on_packet_companion(const std::shared_ptr<Link>& link, const wire::PacketCompanion& request);
  // `packets`: where they reach the peer's end; null: none carry the companion.
  wire::Answer make_companion(const std::shared_ptr<Link>& link, const wire::Companion& request,
                              const wire::PacketAddress* packets, wire::CompanionAck& ack);
  void end(const std::shared_ptr<Link>& link, const char* why);
  // owner_bounds.cpp
  bool needs_no_proof(const Link& link) const;
  bool is_unproven(const Link& link) const;
  std::vector<std::shared_ptr<Link>>
  of_greediest_host(const std::vector<std::shared_ptr<Link>>& all) const;
  bool make_room_for_link();
  // `qp`: of this process, for which it is asked for.
  wire::Answer make_room_for_companion(const std::shared_ptr<Link>& link, uint64_t qp);
  void charge(const std::shared_ptr<Link>& link, const std::shared_ptr<Companion>& end,
              uint64_t shown);
  bool give_companion_up_for(const std::shared_ptr<Link>& link);
  wire::Answer refuse_companion(const std::shared_ptr<Link>& link);
  void give_up_unopened(uint64_t number);
  void close_companion(uint64_t number);
  void is_open(uint64_t number, bool ok);
  void is_proven(const std::shared_ptr<Link>& link, const std::shared_ptr<Companion>& end,
                 uint64_t qp);
  void look_who_stands();
  bool make_room_to_wait(const std::shared_ptr<Link>& link);
  void heard(const std::shared_ptr<Link>& link, uint64_t frames);
  void look_at_binds();
  // owner_peers.cpp
  void meet(const std::shared_ptr<Link>& link);
  void note(const std::shared_ptr<Link>& link);
  // owner_proof.cpp
  void on_claim(const std::shared_ptr<Link>& link, const wire::Claim& claim);
  wire::Answer make_claim(const std::shared_ptr<Link>& link, const wire::Claim& asked,
                          wire::Slot& slot);
  void on_prove(const std::shared_ptr<Link>& link, const wire::Prove& prove);
  wire::Answer judge(const std::shared_ptr<Link>& link, const wire::Prove& prove, wire::Mac& mac);
  bool make_room(const Slots& slots, SlotKind kind);
  void give_up(const std::shared_ptr<Link>& link, uint64_t peers, bool proven = false);
  // The queue pair of this handle does still.
  bool exists(uint64_t handle) const;
  std::shared_ptr<Link> vouched_elsewhere(const std::shared_ptr<Link>& link, uint64_t handle) const;

  World& world_;
  Directory& directory_;
  Devices& devices_;
  const Protocols& protocols_;
  const wire::Id process_;
  Peers& peers_;
  std::set<std::shared_ptr<Link>> links_;
  std::map<wire::Id, std::weak_ptr<Link>> by_ticket_;
  std::deque<std::weak_ptr<Link>> away_;      // whose connections were lost, in that order
  std::deque<std::weak_ptr<Link>> strangers_; // the oldest first
  WaitingBinds waiting_;
  QpHolders holders_;
  CompanionCharges companions_;
  size_t binds_ = 0; // since they were counted
};

} // namespace adverb::link
