// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The connections of the real links (link/seeker.h, link/owner.h) in a schedule, which stand for
// sockets and the host's broker: what is sent over one arrives when the schedule says so, in pieces
// of any length, and any of them may be lost. wires.cpp has in it what link/connection.cpp,
// link/address.cpp and link/broker.cpp have in the product, under the same names, so that those
// stay in their archive.
#pragma once

#include "choices.h"
#include "link/broker.h"
#include "step.h"
#include "world/world.h"

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <vector>

namespace sim {

class Wires {
public:
  explicit Wires(Choices& choices);
  ~Wires();
  Wires(const Wires&) = delete;
  Wires& operator=(const Wires&) = delete;
  static Wires& present() { return *present_; }

  // A process that links, whose service is `fibre`.
  void add(adverb::World& world, uint32_t fibre) { hosts_[&world].fibre = fibre; }
  void offer(Steps& steps);
  // The network gives up what there is, or one of it; each end hears when it comes to it.
  void cut();
  // Nobody says anything any more.
  void close();

  bool loud = false; // prints who is told what

  // For who stands in for the product's.
  struct End {
    adverb::World* world = nullptr; // null: the broker has it, and waits for a hello
    int other = -1;
    std::vector<std::byte> coming;
    bool stands = false;
    bool handed = false; // by the broker, to its owner: the other end made it
    bool settled =
        false;           // a queue pair has been proven over it, or it stands for one that was lost
    bool closed = false; // by who had it
    bool over = false;   // by the other end; what is coming comes all the same
    bool cut = false;
    std::function<void()> stand;
    std::function<void(std::span<const std::byte>)> receive;
    std::function<void(bool cut)> lose;
  };
  int make();
  End& end(int fd) { return ends_.at(fd); }
  void send(int fd, std::vector<std::byte>& bytes);
  void shut(int fd);
  bool vouches_for_nobody() const { return vouches_ == 0; }
  bool vouches() { return vouches_ == 2 || (vouches_ == 1 && choices_.once_in(2)); }
  void serve(adverb::World& world, adverb::link::Broker::Accept accept) {
    hosts_[&world].accept = std::move(accept);
  }
  void own(adverb::World& world, uint32_t qpn) { hosts_[&world].qpns.insert(qpn); }
  void disown(adverb::World& world, uint32_t qpn);

private:
  struct Host {
    uint32_t fibre = 0;
    std::multiset<uint32_t> qpns;
    adverb::link::Broker::Accept accept;
  };
  void connect(int fd);
  void hand_over(int fd);
  Host* owner_of(const End& end);

  static Wires* present_;
  Choices& choices_;
  const uint32_t vouches_; // the kernel for no process, for some, or for all
  std::map<int, End> ends_;
  std::map<adverb::World*, Host> hosts_;
  int next_;
  bool may_hear(const End& mine) const;
  void told(End& end, const adverb::link::wire::Frame& frame) const;
  friend class adverb::link::Connection;
};

} // namespace sim
