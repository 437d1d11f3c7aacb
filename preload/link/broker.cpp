// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/broker.h"
#include "memory/own_fds.h"
#include "world/world.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <mutex>
#include <sched.h>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

namespace adverb::link {
namespace {

// Who started a process that has ended again by then serves itself: there is something wrong with
// it.
constexpr std::chrono::seconds start_again_after{10};
// Two processes that start together meet in the gap between the other's bind and listen; the bound
// keeps a broken one from holding us.
constexpr int tries_in_gap = 20;
// The pause before each try to join, and to be heard, is twice the one before.
constexpr std::chrono::milliseconds pause_first{1};
constexpr std::chrono::milliseconds pause_most{10000};
// A broker that reads nothing between two tries so far apart is said to be slow.
constexpr std::chrono::milliseconds slow_after{500};
// A queue of connections that is full may be an honest broker's, at the start of many programs, or
// that of a program that accepts none: after so many tries, 255 ms, it is taken for the latter.
constexpr unsigned hangs_after = 8;
// A broker that closes the connection of a member sooner has refused it.
constexpr std::chrono::seconds refused_within{1};

std::chrono::milliseconds pause_after(unsigned failed) {
  return failed >= 14 ? pause_most : pause_first * (1U << failed);
}

bool same(const wire::Registration& a, const wire::Id& gid, uint32_t qpn) {
  return a.qpn == qpn && a.gid == gid;
}

} // namespace

Broker::Broker(World& world, uint16_t port, Accept accept, Start start)
    : world_(world), port_(port), accept_(std::move(accept)), start_(std::move(start)),
      server_(world, port, false, accept_) {}

int Broker::join() {
  const std::lock_guard hold(lock_);
  return join_locked();
}

int Broker::join_locked() {
  if (broker_ || server_.serves())
    return 0;
  if (again_ != 0)
    return EAGAIN;
  const int rc = try_to_join();
  if (rc != 0)
    join_later();
  return rc;
}

void Broker::join_later() {
  if (again_ != 0)
    return;
  if (failed_ >= hangs_after && world_.log.every("broker-join", 60))
    world_.log.warn("the host's broker does not answer, or another user holds its name; peers "
                    "cannot reach this process's unpinned regions; run `adverb broker` as root");
  again_ = world_.service.after(pause_after(failed_++), [this] {
    const std::lock_guard hold(lock_);
    again_ = 0;
    join_locked();
  });
}

int Broker::try_to_join() {
  int rc = 0;
  for (int tries = 0; tries < tries_in_gap; ++tries) {
    bool hangs = false;
    for (const bool root : {true, false}) {
      rc = follow(members_name(port_, root, geteuid()), root);
      if (rc == 0)
        return 0;
      hangs |= rc == EAGAIN;
    }
    if (hangs && failed_ < hangs_after)
      return EAGAIN;
    rc = start_or_serve();
    if (rc == 0 && server_.serves())
      return 0;
    if (rc != 0 && hangs)
      break;
    sched_yield();
  }
  return rc == 0 ? EAGAIN : rc;
}

int Broker::follow(const std::string& name, bool root) {
  sockaddr_un address;
  const socklen_t bytes = members_address(name, address);
  // Joining and registering happen on the program's thread: a broker that hangs must not hold it. A
  // Unix socket is connected at once or not at all.
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  ucred who{};
  int rc = 0;
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), bytes) != 0)
    rc = errno;
  else if ((rc = peer_of(fd, who)) == 0 && who.uid != (root ? 0 : geteuid()))
    rc = EPERM; // somebody else has the name
  if (rc != 0) {
    if (fd >= 0)
      close(fd);
    return rc;
  }
  // Registrations are written on the program's thread, while the service thread may close the
  // connection at any moment and its number may come back as one of the program's own files.
  broker_fd_ = own_fds::raised(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  world_.service.own_fd(broker_fd_);
  broker_ = Connection::make(world_, fd);
  broker_->start(
      [this](const wire::Frame& frame, int& passed) {
        if (frame.type == wire::Type::hello_ack && world_.log.every("broker-refuses", 60))
          world_.log.warn("the host's broker has no room for more programs of this user; peers "
                          "cannot reach this process's unpinned regions until some have ended");
        if (frame.type != wire::Type::handed || passed < 0)
          return;
        const int connection = passed;
        passed = -1;
        accept_(connection, wire::get<wire::Hello>(frame));
      },
      [this](const char*) {
        const std::lock_guard hold(lock_);
        broker_.reset();
        world_.service.disown_fd(broker_fd_);
        own_fds::shut(std::exchange(broker_fd_, -1));
        unsent_.clear(); // the next one is told all
        if (world_.clock.now() - joined_ < refused_within)
          return join_later();
        failed_ = 0;
        join_locked();
      });
  joined_ = world_.clock.now();
  for (const auto& registration : mine_)
    tell_broker(registration, wire::Type::add_qp);
  return 0;
}

// 0: this process serves, or a process does that waits to be followed: who connects to the socket
// meanwhile is in its queue.
int Broker::start_or_serve() {
  const int members = listen_for_members(members_name(port_, false, geteuid()));
  if (members < 0)
    return -members;
  const int peers = listen_for_peers(port_);
  const auto now = world_.clock.now();
  if (start_ && peers >= 0 && (!started_ || now - *started_ > start_again_after)) {
    started_ = now;
    const int rc = start_(members, peers);
    if (rc == 0) {
      close(members);
      close(peers);
      return 0;
    }
    world_.log.info("no broker can be started as a process of its own (errno {}): this process "
                    "serves the host's port",
                    rc);
  }
  for (const auto& registration : mine_)
    server_.add(registration.gid, registration.qpn);
  server_.serve(members, peers);
  return 0;
}

void Broker::tell_broker(const wire::Registration& registration, wire::Type type) {
  auto frame = wire::frame(registration, type);
  if (!broker_ || (unsent_.empty() && send_now(frame)))
    return;
  unsent_.push_back(std::move(frame));
  if (unsent_.size() > 1)
    return;
  send_pause_ = pause_first;
  send_later();
}

// False: it is to be sent later. A broker that is gone is told nothing: the service thread is about
// to learn it, joins the next one and registers all there.
bool Broker::send_now(const std::vector<std::byte>& frame) {
  if (::send(broker_fd_, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
      static_cast<ssize_t>(frame.size()))
    return true;
  if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS)
    return false;
  if (errno != EPIPE && errno != ECONNRESET)
    world_.log.warn("the host's broker does not take registrations (errno {}); peers may treat "
                    "this process as stock",
                    errno);
  return true;
}

void Broker::send_later() {
  world_.service.after(send_pause_, [this] {
    const std::lock_guard hold(lock_);
    const size_t before = unsent_.size();
    while (!unsent_.empty() && send_now(unsent_.front()))
      unsent_.pop_front();
    if (unsent_.empty())
      return;
    if (unsent_.size() != before)
      send_pause_ = pause_first; // it reads
    else if (send_pause_ >= slow_after && world_.log.every("broker-reads", 60))
      world_.log.warn("the host's broker takes no registrations, as it is stopped or busy; peers "
                      "may treat this process as stock until it goes on");
    send_later();
    send_pause_ = std::min(2 * send_pause_, pause_most);
  });
}

void Broker::add(const wire::Id& gid, uint32_t qpn) {
  const std::lock_guard hold(lock_);
  const wire::Registration registration{gid, qpn, 0};
  const bool joined = broker_ || server_.serves();
  mine_.push_back(registration);
  if (!joined) {
    join_locked(); // registers all of mine_
    return;
  }
  if (server_.serves())
    server_.add(gid, qpn);
  else
    tell_broker(registration, wire::Type::add_qp);
}

void Broker::remove(const wire::Id& gid, uint32_t qpn) {
  const std::lock_guard hold(lock_);
  const auto at =
      std::find_if(mine_.begin(), mine_.end(), [&](const auto& r) { return same(r, gid, qpn); });
  if (at == mine_.end())
    return;
  mine_.erase(at);
  if (server_.serves())
    server_.remove(gid, qpn);
  else
    tell_broker({gid, qpn, 0}, wire::Type::remove_qp);
}

} // namespace adverb::link
