// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/broker_server.h"
#include "link/bounds.h"
#include "memory/own_fds.h"
#include "world/world.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace adverb::link {

using observe::Counter;

namespace {

constexpr std::chrono::seconds hello_due{2}; // of a connection
// While as many as may have not said it, others wait in the kernel's queue, and none of these
// longer than this: a hello comes with its connection.
constexpr std::chrono::milliseconds hello_due_in_crowd{100};
// The port of a serving process that exits is free some instants after its members know.
constexpr std::chrono::milliseconds tcp_again_first{5};
constexpr std::chrono::milliseconds tcp_again_most{1000};
constexpr std::chrono::milliseconds no_descriptors_pause{100};

// That stands for the process at the other end, whatever its number becomes; negative: none.
int process_fd_of(int fd) {
#ifndef SO_PEERPIDFD
  constexpr int SO_PEERPIDFD = 77; // Linux 6.5
#endif
  int process = -1;
  socklen_t bytes = sizeof process;
  return getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &process, &bytes) == 0 ? own_fds::raised(process)
                                                                         : -1;
}

// Members send none, and the last close of somebody else's may take as long as he likes. Accepted
// sockets have this from the one that listens. Older kernels do not know it.
void take_no_descriptors(int fd) {
#ifndef SO_PASSRIGHTS
  constexpr int SO_PASSRIGHTS = 83; // Linux 6.16
#endif
  const int no = 0;
  setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof no);
}

bool has_ended(int process_fd) {
  pollfd process{process_fd, POLLIN, 0};
  return process_fd >= 0 && poll(&process, 1, 0) > 0;
}

// What the kernel keeps for a peer that reads nothing, or writes ever more, is bounded. Connections
// have this from the socket that accepts them.
void bound_buffers(int fd) {
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bounds::socket_bytes, sizeof bounds::socket_bytes);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bounds::socket_bytes, sizeof bounds::socket_bytes);
}

int listen_on(int made, const sockaddr* address, socklen_t bytes, int waiting) {
  const int fd = own_fds::raised(made);
  if (fd >= 0 && bind(fd, address, bytes) == 0 && listen(fd, waiting) == 0)
    return fd;
  const int rc = errno;
  if (fd >= 0)
    close(fd);
  return -rc;
}

} // namespace

std::string members_name(uint16_t port, bool for_all_users, uid_t uid) {
  return "adverb." + (for_all_users ? std::string("broker") : std::to_string(uid)) + "." +
         std::to_string(port);
}

socklen_t members_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

int listen_for_members(const std::string& name) {
  sockaddr_un address;
  const socklen_t bytes = members_address(name, address);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  take_no_descriptors(fd);
  return listen_on(fd, reinterpret_cast<sockaddr*>(&address), bytes, 1024);
}

int listen_for_peers(uint16_t port) {
  const int on = 1;
  const int off = 0;
  int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0) {
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    bound_buffers(fd);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(port);
    return listen_on(fd, reinterpret_cast<sockaddr*>(&any), sizeof any, 1024);
  }
  fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0) {
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    bound_buffers(fd);
  }
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  return listen_on(fd, reinterpret_cast<sockaddr*>(&any), sizeof any, 1024);
}

int peer_of(int fd, ucred& who) {
  socklen_t bytes = sizeof who;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 ? 0 : errno;
}

BrokerServer::BrokerServer(World& world, uint16_t port, bool for_all_users, Accept here,
                           MayOwn may_own)
    : world_(world), port_(port), for_all_users_(for_all_users), here_(std::move(here)),
      may_own_(std::move(may_own)), tcp_again_(tcp_again_first) {}

void BrokerServer::serve(int members, int peers) {
  const std::lock_guard hold(lock_);
  unix_fd_ = members;
  readable_ = own_fds::raised(epoll_create1(EPOLL_CLOEXEC));
  if (readable_ < 0)
    world_.log.warn("epoll_create1: errno {}; no other process can be served", errno);
  world_.service.own_fd(readable_);
  world_.service.watch(members, EPOLLIN, [this](uint32_t) {
    const std::lock_guard held(lock_);
    accept_members();
  });
  if (peers >= 0)
    serve_peers(peers);
  else
    have_peers_soon(-peers);
}

bool BrokerServer::serves() const {
  const std::lock_guard hold(lock_);
  return unix_fd_ >= 0;
}

// Under lock_.
void BrokerServer::serve_peers(int fd) {
  tcp_fd_ = fd;
  tcp_again_ = tcp_again_first;
  world_.service.watch(fd, EPOLLIN, [this](uint32_t) { accept_strangers(); });
}

// Under lock_: the port was not to be had.
void BrokerServer::have_peers_soon(int error) {
  if (tcp_again_ == tcp_again_most && world_.log.once("broker-port"))
    world_.log.warn("port {} is taken (errno {}); peers cannot reach this process's unpinned "
                    "regions until it is free; set link.port in the policy, or run `adverb "
                    "broker` as root to share it between users",
                    port_, error);
  world_.service.after(tcp_again_, [this] {
    const std::lock_guard hold(lock_);
    if (const int fd = listen_for_peers(port_); fd >= 0)
      serve_peers(fd);
    else
      have_peers_soon(-fd);
  });
  tcp_again_ = std::min(2 * tcp_again_, tcp_again_most);
}

// Without a free descriptor a waiting connection would be announced again and again.
void BrokerServer::pause_if_exhausted(int listener) {
  if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
    return;
  if (world_.log.every("broker-descriptors", 10))
    world_.log.warn("no descriptors left for connections of peers (errno {}); raise RLIMIT_NOFILE "
                    "(`ulimit -n`)",
                    errno);
  world_.service.change(listener, 0);
  world_.service.after(no_descriptors_pause,
                       [this, listener] { world_.service.change(listener, EPOLLIN); });
}

// Under lock_. False: the connection is closed, and is told why where the reason may pass.
bool BrokerServer::admits(int fd, const ucred& who) {
  const size_t room = bounds::members(for_all_users_);
  if (!for_all_users_ && who.uid != geteuid())
    return false;
  const auto user = users_.find(who.uid);
  const size_t its = for_all_users_ && user != users_.end() ? user->second.members : 0;
  if (bounds::has_room(its, members_.size(), room))
    return true;
  if (world_.log.every("broker-members", 10))
    world_.log.warn(
        "user {} has {} programs here, of {} that there may be of all users; process "
        "{} is not served{}",
        who.uid, its, room, who.pid,
        room == bounds::members_most
            ? ""
            : fmt::format("; raise RLIMIT_NOFILE of the broker, up to {}",
                          bounds::members_most * bounds::descriptors_of_member(for_all_users_)));
  wire::HelloAck refusal{};
  refusal.answer = static_cast<uint32_t>(wire::Answer::no_resources);
  const auto frame = wire::frame(refusal);
  ::send(fd, frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return false;
}

// Under lock_. On the service thread, as all that touches members and strangers.
void BrokerServer::accept_members() {
  assert(world_.service.on_thread());
  for (size_t turns = bounds::accepts_in_a_turn; turns != 0; --turns) {
    const int fd = own_fds::raised(accept4(unix_fd_, nullptr, nullptr, SOCK_CLOEXEC));
    if (fd < 0) {
      pause_if_exhausted(unix_fd_);
      return;
    }
    ucred who{};
    epoll_event readable{EPOLLIN, {.fd = fd}};
    if (peer_of(fd, who) != 0 || !admits(fd, who) ||
        epoll_ctl(readable_, EPOLL_CTL_ADD, fd, &readable) != 0) {
      world_.counters.count(Counter::broker_refused);
      close(fd);
      continue;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bounds::member_socket_bytes,
               sizeof bounds::member_socket_bytes);
    auto member = Connection::make(world_, fd);
    members_[member] = {who.pid, who.uid, may_own_ ? process_fd_of(fd) : -1, fd};
    ++users_[who.uid].members;
    member_by_fd_[fd] = member;
    member->start(
        [this, weak = std::weak_ptr(member)](const wire::Frame& frame, int&) {
          if (const auto from = weak.lock())
            on_member(from, frame);
        },
        [this, weak = std::weak_ptr(member)](const char*) {
          if (const auto from = weak.lock())
            forget_member(from);
        });
  }
}

void BrokerServer::on_member(const std::shared_ptr<Connection>& from, const wire::Frame& frame) {
  if (frame.type != wire::Type::add_qp && frame.type != wire::Type::remove_qp) {
    world_.counters.count(Counter::malformed_messages);
    return;
  }
  const std::lock_guard hold(lock_);
  const auto r = wire::get<wire::Registration>(frame);
  const auto known = members_.find(from);
  if (known == members_.end())
    return;
  if (frame.type == wire::Type::add_qp)
    add_of_member(from, known->second, r);
  else
    remove_of_member(from, known->second, r);
}

void BrokerServer::remove_of_member(const std::shared_ptr<Connection>& from, Member& member,
                                    const wire::Registration& what) {
  const auto [begin, end] = owners_.equal_range(what.qpn);
  auto found = end;
  bool others = false; // of its, of that number
  for (auto it = begin; it != end; ++it)
    if (it->second.member == from && found == end && it->second.gid == what.gid)
      found = it;
    else
      others |= it->second.member == from;
  if (found == end)
    return;
  --member.registered;
  --users_[member.user].registered;
  --registered_;
  if (--found->second.times != 0)
    return;
  owners_.erase(found);
  if (!others)
    member.numbers.erase(what.qpn);
}

// Under lock_. A number that a process has registered under one GID more than once is kept once.
void BrokerServer::add_of_member(const std::shared_ptr<Connection>& from, Member& member,
                                 const wire::Registration& what) {
  User& user = users_[member.user];
  if (what.qpn > bounds::number_most)
    return refuse_registration(member, "queue pairs, with numbers that there are not,");
  if (member.registered >= bounds::registrations_of_member ||
      (for_all_users_ && !bounds::has_room(user.registered, registered_, bounds::registrations)))
    return refuse_registration(member, "queue pairs");
  const auto [begin, end] = owners_.equal_range(what.qpn);
  size_t of_number = 0;
  auto same = end;
  for (auto it = begin; it != end && same == end; ++it) {
    if (it->second.member == from && it->second.gid == what.gid)
      same = it;
    const auto other = it->second.member ? members_.find(it->second.member) : members_.end();
    of_number += other != members_.end() && other->second.user == member.user ? 1 : 0;
  }
  if (same == end && for_all_users_ && of_number >= bounds::registrations_of_number)
    return refuse_registration(member, "queue pairs of one number");
  if (same != end)
    ++same->second.times;
  else
    owners_.emplace(what.qpn, Owner{what.gid, from, 1});
  member.numbers.insert(what.qpn);
  ++member.registered;
  ++user.registered;
  ++registered_;
}

void BrokerServer::refuse_registration(const Member& member, const char* why) {
  world_.counters.count(Counter::broker_refused);
  if (world_.log.every("broker-registrations", 10))
    world_.log.warn("process {} of user {}, of which {} queue pairs are registered here, registers "
                    "more {} than there is room for; their peers treat these as stock",
                    member.process, member.user, users_[member.user].registered, why);
}

void BrokerServer::forget_member(const std::shared_ptr<Connection>& member) {
  assert(world_.service.on_thread());
  const std::lock_guard hold(lock_);
  if (const auto known = members_.find(member); known != members_.end()) {
    const Member& gone = known->second;
    for (const uint32_t number : gone.numbers) {
      auto [it, end] = owners_.equal_range(number);
      while (it != end)
        it = it->second.member == member ? owners_.erase(it) : std::next(it);
    }
    member_by_fd_.erase(gone.fd);
    if (gone.process_fd >= 0)
      own_fds::shut(gone.process_fd);
    registered_ -= gone.registered;
    User& user = users_[gone.user];
    user.registered -= gone.registered;
    if (--user.members == 0)
      users_.erase(gone.user);
    members_.erase(known);
  }
  look_if_unused();
}

// For one more that has not said hello. False: those that are there came just now, and others wait
// until one of them has gone or its time is over.
bool BrokerServer::make_room() {
  if (strangers_.size() < bounds::strangers)
    return true;
  const auto now = world_.clock.now();
  auto earliest = now;
  std::vector<std::shared_ptr<Connection>> late;
  for (const auto& [stranger, known] : strangers_)
    if (now - known.since >= hello_due_in_crowd)
      late.push_back(stranger);
    else
      earliest = std::min(earliest, known.since);
  for (const auto& stranger : late)
    end_silent(stranger);
  if (!late.empty())
    return true;
  world_.service.change(tcp_fd_, 0);
  crowded_ = world_.service.after(earliest + hello_due_in_crowd - now, [this] { let_in(); });
  return false;
}

void BrokerServer::let_in() {
  if (crowded_ == 0)
    return;
  world_.service.cancel(std::exchange(crowded_, 0));
  world_.service.change(tcp_fd_, EPOLLIN);
}

void BrokerServer::accept_strangers() {
  assert(world_.service.on_thread());
  while (make_room()) {
    const int fd = accept4(tcp_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      pause_if_exhausted(tcp_fd_);
      return;
    }
    world_.counters.count(Counter::broker_served);
    auto stranger = Connection::make(world_, fd);
    // What it says behind its hello, not knowing yet whether that is answered, is for the owner.
    stranger->read_no_more_than(wire::frame(wire::Hello{}).size());
    // Whoever asks knows from now on that an answer is worth waiting for: the owner may be stopped.
    stranger->send(wire::frame(wire::Banner{}));
    const std::weak_ptr weak(stranger);
    const uint64_t timer = world_.service.after(hello_due, [this, weak] {
      if (const auto from = weak.lock())
        end_silent(from);
    });
    strangers_[stranger] = {timer, world_.clock.now()};
    stranger->start(
        [this, weak](const wire::Frame& frame, int&) {
          const auto from = weak.lock();
          if (!from)
            return;
          if (frame.type == wire::Type::hello) {
            on_stranger(from, wire::get<wire::Hello>(frame));
          } else {
            world_.counters.count(Counter::broker_refused);
            from->close();
          }
          forget_stranger(from);
        },
        [this, weak](const char* why) {
          world_.counters.count(Counter::broker_refused);
          world_.log.debug("a connection to the broker ended before its hello: {}", why);
          if (const auto from = weak.lock())
            forget_stranger(from);
        });
  }
}

// It is late here. Its hello may be in the socket, if this thread had no processor meanwhile.
void BrokerServer::end_silent(const std::shared_ptr<Connection>& stranger) {
  stranger->poll_now();
  if (!forget_stranger(stranger))
    return;
  world_.counters.count(Counter::broker_refused);
  stranger->close();
}

bool BrokerServer::forget_stranger(const std::shared_ptr<Connection>& stranger) {
  const auto at = strangers_.find(stranger);
  if (at == strangers_.end())
    return false;
  world_.service.cancel(at->second.timer);
  strangers_.erase(at);
  let_in();
  {
    const std::lock_guard hold(lock_);
    look_if_unused();
  }
  return true;
}

// Asked when it matters, as the kernel answers for queue pairs that are at INIT at least. Under
// lock_.
bool BrokerServer::is_foreign(const Owner& owner, uint32_t qpn) {
  const auto known = owner.member ? members_.find(owner.member) : members_.end();
  if (!may_own_ || known == members_.end())
    return false;
  // The connection of a process that has ended may be another's by now, and its number, too.
  if (!has_ended(known->second.process_fd) && may_own_(known->second.process, qpn))
    return false;
  world_.counters.count(Counter::broker_refused);
  if (world_.log.every("broker-foreign", 10))
    world_.log.warn("process {} has registered queue pair {}, which another process has made; its "
                    "peers are not handed to it",
                    known->second.process, qpn);
  return true;
}

// Those that have written something, however many there are.
void BrokerServer::poll_members() {
  std::array<epoll_event, 64> events;
  // Who has not been read yet comes before who has written again.
  for (size_t turns = members_.size() / events.size() + 1; turns != 0; --turns) {
    const int n = epoll_wait(readable_, events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < n; ++i)
      if (const auto member = member_by_fd_.find(events[static_cast<size_t>(i)].data.fd);
          member != member_by_fd_.end())
        std::shared_ptr(member->second)->poll_now();
    if (n < static_cast<int>(events.size()))
      return;
  }
}

void BrokerServer::on_stranger(const std::shared_ptr<Connection>& connection,
                               const wire::Hello& hello) {
  assert(world_.service.on_thread());
  std::unique_lock hold(lock_);
  // A member wrote its registration before it told anybody its queue pair number: read all that is
  // there before looking the number up.
  accept_members();
  poll_members();
  // Devices number their queue pairs alike. The GID tells them apart where it was registered; else
  // the initiator asks again and meets the next.
  std::vector<const Owner*> all;
  const auto [begin, end] = owners_.equal_range(hello.dqpn);
  for (auto it = begin; it != end; ++it)
    if (!is_foreign(it->second, hello.dqpn))
      all.push_back(&it->second);
  std::vector<const Owner*> candidates;
  std::ranges::copy_if(all, std::back_inserter(candidates),
                       [&](const Owner* one) { return one->gid == hello.dgid; });
  if (candidates.empty())
    candidates = std::move(all);
  const Owner* owner = candidates.empty() ? nullptr : candidates[hello.attempt % candidates.size()];
  if (owner == nullptr) {
    world_.counters.count(Counter::broker_refused);
    wire::HelloAck ack{};
    ack.answer = static_cast<uint32_t>(wire::Answer::no_such_qp);
    connection->send(wire::frame(ack));
    connection->close();
    return;
  }
  const auto member = owner->member;
  hold.unlock();
  const int fd = connection->detach();
  world_.counters.count(Counter::broker_handed);
  if (!member) {
    here_(fd, hello);
    return;
  }
  if (!has_room_to_hand(member)) {
    world_.counters.count(Counter::broker_refused);
    close(fd);
  } else if (!member->hand(wire::frame(hello, wire::Type::handed), fd)) {
    world_.counters.count(Counter::broker_refused);
  }
}

// A member that takes nothing keeps descriptors of this process.
bool BrokerServer::has_room_to_hand(const std::shared_ptr<Connection>& member) const {
  if (member->waiting() == 0)
    return true;
  const std::lock_guard hold(lock_);
  const auto known = members_.find(member);
  if (known == members_.end())
    return false;
  size_t all = 0;
  size_t its = 0;
  for (const auto& [other, who] : members_) {
    all += other->waiting();
    its += who.user == known->second.user ? other->waiting() : 0;
  }
  if (bounds::has_room(for_all_users_ ? its : 0, all, bounds::handed()))
    return true;
  if (world_.log.every("broker-handed", 10))
    world_.log.warn("process {} of user {} takes no connections of its peers, {} of which wait for "
                    "that user's programs; one is closed",
                    known->second.process, known->second.user, its);
  return false;
}

void BrokerServer::add(const wire::Id& gid, uint32_t qpn) {
  const std::lock_guard hold(lock_);
  owners_.emplace(qpn, Owner{gid, nullptr, 1});
}

void BrokerServer::remove(const wire::Id& gid, uint32_t qpn) {
  const std::lock_guard hold(lock_);
  const auto [begin, end] = owners_.equal_range(qpn);
  for (auto it = begin; it != end; ++it)
    if (!it->second.member && it->second.gid == gid) {
      owners_.erase(it);
      break;
    }
}

void BrokerServer::when_unused(std::chrono::nanoseconds time, std::function<void()> done) {
  world_.service.run([this, time, done = std::move(done)] {
    const std::lock_guard hold(lock_);
    unused_most_ = time;
    unused_ = done;
    look_if_unused();
  });
}

// Under lock_, on the service thread.
void BrokerServer::look_if_unused() {
  if (!unused_)
    return;
  if (unused_timer_ != 0)
    world_.service.cancel(std::exchange(unused_timer_, 0));
  if (!members_.empty() || !strangers_.empty())
    return;
  unused_timer_ = world_.service.after(unused_most_, [this] {
    const std::lock_guard hold(lock_);
    unused_timer_ = 0;
    accept_members(); // who has come just now
    if (members_.empty() && strangers_.empty())
      unused_();
    else
      look_if_unused();
  });
}

} // namespace adverb::link
