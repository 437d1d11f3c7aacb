// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The serving half of a broker: accepts members, which register their queue pairs, and peers, each
// of whose connections it hands to the member that has the queue pair it asks for. Runs in a
// process of its own (`adverb broker`), or in a program's where none can be started.
//
// The sockets of members are abstract Unix ones, so each network namespace has its own; who
// connects is known by SO_PEERCRED.
#pragma once

#include "link/connection.h"
#include "world/sync.h"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

namespace adverb {
class World;
}

namespace adverb::link {

// Where members of a broker connect to: of root's for all users, or of one user's own.
std::string members_name(uint16_t port, bool for_all_users, uid_t uid);
socklen_t members_address(const std::string& name, sockaddr_un& address); // abstract
// Listening sockets, close-on-exec and nonblocking; -errno else.
int listen_for_members(const std::string& name);
int listen_for_peers(uint16_t port);

int peer_of(int fd, ucred& who); // errno value

class BrokerServer {
public:
  // `here` gets, on the service thread, each connection that asks for a queue pair of this process,
  // with its hello. `for_all_users`: members may be of any user. `may_own`: whether a member, the
  // process of that number, may speak for a queue pair; without it all may for those they register.
  using Accept = std::function<void(int fd, const wire::Hello& hello)>;
  using MayOwn = std::function<bool(pid_t process, uint32_t qpn)>;
  BrokerServer(World& world, uint16_t port, bool for_all_users, Accept here, MayOwn may_own = {});

  // Serves, from now on and for good. Takes the sockets over; without one for peers (negative) it
  // tries to have it until it has. Thread-safe, as all here.
  void serve(int members, int peers);
  bool serves() const;

  // Queue pairs of this process.
  void add(const wire::Id& gid, uint32_t qpn);
  void remove(const wire::Id& gid, uint32_t qpn);

  // Calls `done`, on the service thread, when there has been neither member nor peer for so long.
  void when_unused(std::chrono::nanoseconds time, std::function<void()> done);

private:
  struct Owner {
    wire::Id gid;
    std::shared_ptr<Connection> member; // null: this process
    size_t times;                       // that it has registered this
  };
  struct Member {
    pid_t process;
    uid_t user;
    int process_fd; // a pidfd; negative: the kernel has none
    int fd;
    size_t registered = 0;
    std::set<uint32_t> numbers = {}; // of these
  };
  // Of members alone.
  struct User {
    size_t members = 0;
    size_t registered = 0;
  };
  struct Stranger {
    uint64_t timer; // of its end
    std::chrono::nanoseconds since;
  };

  void serve_peers(int fd);
  void have_peers_soon(int error);
  void pause_if_exhausted(int listener);
  void accept_members();
  void poll_members();
  bool admits(int fd, const ucred& who);
  void on_member(const std::shared_ptr<Connection>& from, const wire::Frame& frame);
  void add_of_member(const std::shared_ptr<Connection>& from, Member& member,
                     const wire::Registration& what);
  void remove_of_member(const std::shared_ptr<Connection>& from, Member& member,
                        const wire::Registration& what);
  void refuse_registration(const Member& member, const char* why);
  void accept_strangers();
  bool make_room();
  void let_in();
  void end_silent(const std::shared_ptr<Connection>& stranger);
  bool forget_stranger(const std::shared_ptr<Connection>& stranger); // false: known no more
  bool has_room_to_hand(const std::shared_ptr<Connection>& member) const;
  bool is_foreign(const Owner& owner, uint32_t qpn);
  void on_stranger(const std::shared_ptr<Connection>& connection, const wire::Hello& hello);
  void forget_member(const std::shared_ptr<Connection>& member);
  void look_if_unused();

  World& world_;
  const uint16_t port_;
  const bool for_all_users_;
  const Accept here_;
  const MayOwn may_own_;
  mutable RecursiveMutex lock_; // handlers of members run inside on_stranger() too
  int unix_fd_ = -1;
  int tcp_fd_ = -1;
  std::chrono::milliseconds tcp_again_;   // until the port is tried again
  std::multimap<uint32_t, Owner> owners_; // by queue pair number, which members choose: no hashes
  std::map<std::shared_ptr<Connection>, Member> members_;
  std::unordered_map<uid_t, User> users_;
  size_t registered_ = 0; // of all members
  std::unordered_map<int, std::shared_ptr<Connection>> member_by_fd_;
  int readable_ = -1; // an epoll of the members' sockets, to be asked which have something
  std::map<std::shared_ptr<Connection>, Stranger> strangers_; // no hello yet
  uint64_t crowded_ = 0;                                      // timer, while no more are accepted
  std::chrono::nanoseconds unused_most_{};
  std::function<void()> unused_;
  uint64_t unused_timer_ = 0;
};

} // namespace adverb::link
