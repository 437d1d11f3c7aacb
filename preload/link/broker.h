// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One port per host for many processes: the first adverb process of a user serves policy link.port
// and hands each connection to the process that owns the queue pair it asks for, over a Unix
// socket; when it exits another takes over. A root-run `adverb broker` serves all users.
//
// The Unix sockets are abstract names, so each network namespace has its own; who connects is known
// by SO_PEERCRED: a process follows a broker of its own uid or of root, and a broker of a user
// takes members of that user only.
#pragma once

#include "link/connection.h"
#include "world/sync.h"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace adverb {
class World;
}

namespace adverb::link {

class Broker {
public:
  // `accept` gets, on the service thread, each connection that asks for a queue pair of this
  // process, with its hello. `for_all_users`: the `adverb broker` tool.
  using Accept = std::function<void(int fd, const wire::Hello& hello)>;
  Broker(World& world, uint16_t port, bool for_all_users, Accept accept);

  // Serves or joins; errno value when neither is possible (another user's program holds the port).
  // Called by add(), and by the tool. Thread-safe.
  int join();

  // When add() returns, hellos for the queue pair find this process. Thread-safe.
  void add(const wire::Id& gid, uint32_t qpn);
  void remove(const wire::Id& gid, uint32_t qpn);

private:
  struct Owner {
    wire::Id gid;
    std::shared_ptr<Connection> member; // null: this process
  };

  // Under lock_; errno values.
  int join_locked();
  int follow(const std::string& name, bool root);
  int serve();
  int listen_tcp();
  void pause_if_exhausted(int listener);
  void accept_members();
  void accept_strangers();
  bool make_room();
  void let_in();
  bool forget_stranger(const std::shared_ptr<Connection>& stranger); // false: known no more
  void on_stranger(const std::shared_ptr<Connection>& connection, const wire::Hello& hello);
  void tell_broker(const wire::Registration& registration, wire::Type type);
  void forget_member(const std::shared_ptr<Connection>& member);

  World& world_;
  const uint16_t port_;
  const bool for_all_users_;
  const Accept accept_;
  RecursiveMutex lock_; // handlers of members run inside on_stranger() too
  std::vector<wire::Registration> mine_;
  std::shared_ptr<Connection> broker_; // member: from the broker, the service thread's
  int broker_fd_ = -1;                 // member: the same socket, to write to under lock_
  int unix_fd_ = -1;                   // serving
  int tcp_fd_ = -1;
  std::chrono::milliseconds tcp_again_;                   // until the port is tried again
  std::unordered_multimap<uint32_t, Owner> owners_;       // serving: by queue pair number
  std::map<std::shared_ptr<Connection>, size_t> members_; // and how much each has registered
  struct Stranger {
    uint64_t timer; // of its end
    std::chrono::nanoseconds since;
  };
  std::map<std::shared_ptr<Connection>, Stranger> strangers_; // no hello yet
  uint64_t crowded_ = 0;                                      // timer, while no more are accepted
};

} // namespace adverb::link
