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
  int rc = 0;
  // Two processes that start together meet in the gap between the other's bind and listen; the
  // bound keeps a broken one from holding us.
  for (int tries = 0; tries < 1000; ++tries) {
    bool hangs = false;
    for (const bool root : {true, false}) {
      rc = follow(members_name(port_, root, geteuid()), root);
      if (rc == 0)
        return 0;
      hangs |= rc == EAGAIN;
    }
    rc = start_or_serve();
    if (rc == 0 && server_.serves())
      return 0;
    if (rc != 0 && hangs)
      break;
    sched_yield();
  }
  if (world_.log.once("broker-join"))
    world_.log.warn("the host's broker does not answer, or another user holds its name; peers "
                    "cannot reach this process's unpinned regions; run `adverb broker` as root");
  return rc;
}

int Broker::follow(const std::string& name, bool root) {
  sockaddr_un address;
  const socklen_t bytes = members_address(name, address);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ucred who{};
  // Joining and registering happen on the program's thread; a broker that hangs must not hold it
  // long.
  const timeval limit{1, 0};
  if (fd >= 0)
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
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
        join_locked();
      });
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
  const auto frame = wire::frame(registration, type);
  if (!broker_ || ::send(broker_fd_, frame.data(), frame.size(), MSG_NOSIGNAL) ==
                      static_cast<ssize_t>(frame.size()))
    return;
  // A broker that is gone: the service thread is about to learn it, joins the next one and
  // registers all there.
  if (errno != EPIPE && errno != ECONNRESET)
    world_.log.warn("the host's broker does not take registrations (errno {}); peers may treat "
                    "this process as stock",
                    errno);
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
