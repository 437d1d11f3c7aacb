// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/connection.h"
#include "link/bounds.h"
#include "memory/own_fds.h"
#include "world/world.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstdint>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace adverb::link {

namespace {
constexpr size_t read_bytes = 3584; // at once: frames of the stack stay below 4 KiB
// Reads in one turn: more than a Unix socket's buffer holds, so that poll_now() sees all that was
// sent before. Of a peer's one at a time, as others have their turns, too.
constexpr int reads_at_once = 64;
constexpr size_t remote_read_bytes = 512; // some frames
// One that came along. Its sender may have asked that its end be waited for.
void close_at_once(int fd) {
  if (fd < 0)
    return;
  const linger none{};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
  ::close(fd);
}

} // namespace

std::shared_ptr<Connection> Connection::make(World& world, int given) {
  const int fd = own_fds::raised(given);
  world.service.own_fd(fd);
  // A frame behind another one that is not acknowledged yet would wait for that, up to 200 ms: the
  // proof of a key is behind a hello, and a bind behind the proof. A Unix socket refuses the
  // option.
  const int on = 1;
  const bool remote = setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0;
  return std::shared_ptr<Connection>(new Connection(
      world, fd, remote ? Turn{1, remote_read_bytes} : Turn{reads_at_once, read_bytes}));
}

Connection::~Connection() {
  close();
}

void Connection::start(OnFrame on_frame, std::function<void(const char*)> on_close) {
  on_frame_ = std::move(on_frame);
  on_close_ = std::move(on_close);
  world_.service.watch(fd_, awaited(), [weak = weak_from_this()](uint32_t events) {
    if (const auto self = weak.lock())
      self->ready(events);
  });
}

void Connection::close() {
  if (fd_ < 0)
    return;
  flush();
  // With something unread in it the socket would be reset, and what was sent last lost perhaps.
  std::array<std::byte, read_bytes> unread;
  for (int round = 0; round < reads_at_once; ++round)
    if (recv(fd_, unread.data(), unread.size(), MSG_DONTWAIT) <= 0)
      break;
  world_.service.unwatch(fd_);
  if (rests_ != 0)
    world_.service.cancel(std::exchange(rests_, 0));
  own_fds::shut(std::exchange(fd_, -1));
  close_at_once(passed_fd_);
  passed_fd_ = -1;
  for (const Handed& handed : std::exchange(handed_, {}))
    ::close(handed.fd);
  on_frame_ = nullptr;
  on_close_ = nullptr;
  standing_ = nullptr;
  clogs_ = nullptr;
}

void Connection::when_standing(std::function<void()> tell) {
  standing_ = std::move(tell);
  if (has_sent_)
    stands();
}

void Connection::stands() {
  if (const auto tell = std::exchange(standing_, nullptr))
    tell();
}

int Connection::detach() {
  assert(world_.service.on_thread() && in_.empty());
  world_.service.unwatch(fd_);
  const int fd = fd_;
  fd_ = -1;
  on_frame_ = nullptr;
  on_close_ = nullptr;
  return fd;
}

void Connection::fail(const char* why) {
  const auto keep = shared_from_this();
  const auto tell = std::move(on_close_);
  close();
  if (tell)
    tell(why);
}

void Connection::ready(uint32_t events) {
  assert(world_.service.on_thread());
  const auto keep = shared_from_this();
  if ((events & EPOLLOUT) != 0) {
    flush();
    const bool was_clogged = clogged_;
    look_if_clogged();
    if (was_clogged && !clogged_)
      dispatch();
    if (fd_ >= 0)
      world_.service.change(fd_, awaited());
    if (has_sent_)
      stands();
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && fd_ >= 0) {
    const bool alive = read_some();
    if (!alive && fd_ >= 0)
      fail("closed by the peer");
  }
}

// What reads and sends fail with for now. Who is told first that the connection is no more hears
// why, the other only that it has ended.
bool Connection::passing(int error) {
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR)
    return true;
  // Until something has been sent, an error may say as well that there never was a connection.
  const bool stood = has_sent_ ? error != EPIPE && error != ENOTCONN
                               : error == ECONNRESET || error == ECONNABORTED;
  cut_ = cut_ || stood;
  return false;
}

bool Connection::read_some() {
  for (int round = 0; round < turn_.reads; ++round) {
    std::array<std::byte, read_bytes> buffer;
    if (room_ == 0) { // and the frame that was to fit in is not whole
      world_.counters.count(observe::Counter::malformed_messages);
      return false;
    }
    iovec io{buffer.data(), std::min(turn_.bytes, room_)};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t n = recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
      return passing(errno);
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c))
      if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        // There is room for more than the one that is meant.
        for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
          close_at_once(passed_fd_);
          memcpy(&passed_fd_, CMSG_DATA(c) + at, sizeof passed_fd_);
        }
      }
    if (n == 0)
      return false;
    in_.insert(in_.end(), buffer.begin(), buffer.begin() + n);
    room_ -= room_ == SIZE_MAX ? 0 : static_cast<size_t>(n);
    // A descriptor belongs to the frame it came with, and nothing is kept that could be handled.
    dispatch();
    if (fd_ < 0 || !reads())
      return true;
  }
  return true;
}

void Connection::poll_now() {
  if (reads())
    ready(EPOLLIN);
}

// Whatever else happens to the socket is said unasked, and read_some() looks at it.
uint32_t Connection::awaited() const noexcept {
  return (reads() ? EPOLLIN : 0U) | (has_more() ? EPOLLOUT : 0U);
}

void Connection::rest(std::chrono::nanoseconds length) {
  assert(world_.service.on_thread());
  if (fd_ < 0 || rests_ != 0)
    return;
  rests_ = world_.service.after(length, [weak = weak_from_this()] {
    if (const auto self = weak.lock())
      self->listen_again();
  });
  world_.service.change(fd_, awaited());
}

void Connection::listen_again() {
  rests_ = 0;
  const auto keep = shared_from_this();
  dispatch();
  if (fd_ >= 0)
    world_.service.change(fd_, awaited());
}

void Connection::dispatch() {
  while (fd_ >= 0 && reads()) {
    wire::Frame frame{};
    const auto result = wire::parse(in_, frame);
    if (result == wire::Parse::partial)
      return;
    if (result != wire::Parse::complete) {
      malformed_ = true;
      world_.counters.count(observe::Counter::malformed_messages);
      if (result == wire::Parse::wrong_version)
        refuse_version(frame.version_there);
      fail(result == wire::Parse::wrong_version ? "wrong wire version" : "malformed message");
      return;
    }
    // The handler may close us or give the descriptor away: the frame lives in a copy meanwhile.
    const std::vector<std::byte> copy(in_.begin(), in_.begin() + static_cast<long>(frame.bytes));
    in_.erase(in_.begin(), in_.begin() + static_cast<long>(frame.bytes));
    wire::Frame own{};
    wire::parse(copy, own);
    int fd = passed_fd_;
    passed_fd_ = -1;
    if (const auto handler = on_frame_)
      handler(own, fd);
    close_at_once(fd);
  }
}

// Says so here, and there in what is understood for ever.
void Connection::refuse_version(uint16_t theirs) {
  if (world_.log.every("wire-version", 10))
    world_.log.warn("a peer speaks version {} of adverb's links and this one {} to {}; there is no "
                    "link; run the same adverb on both sides",
                    theirs, wire::version_oldest, wire::version);
  wire::HelloAck refusal{};
  refusal.answer = static_cast<uint32_t>(wire::Answer::wrong_version);
  send(wire::frame(refusal));
}

void Connection::send(std::span<const std::byte> frame) {
  assert(world_.service.on_thread());
  if (fd_ < 0)
    return;
  out_.insert(out_.end(), frame.begin(), frame.end());
  flush();
  look_if_clogged();
  if (fd_ >= 0 && has_more())
    world_.service.change(fd_, awaited());
}

void Connection::look_if_clogged() {
  const bool now = clogs_ && out_.size() > bounds::unread;
  if (now && !clogged_)
    clogs_();
  clogged_ = now;
}

void Connection::flush() {
  while (!out_.empty()) {
    const ssize_t n = ::send(fd_, out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n <= 0) {
      if (n < 0 && (passing(errno) || errno == ENOTCONN) && out_.size() <= bounds::queued)
        return;
      out_.clear();
      shutdown(fd_, SHUT_RDWR); // the reading side will see the end
      return;
    }
    has_sent_ = true;
    out_.erase(out_.begin(), out_.begin() + n);
  }
  if (!handed_.empty() && flush_handed())
    flush();
}

bool Connection::hand(std::vector<std::byte> frame, int fd) {
  assert(world_.service.on_thread());
  if (fd_ < 0 || handed_.size() >= bounds::handed()) {
    ::close(fd);
    return false;
  }
  handed_.push_back({std::move(frame), fd});
  flush();
  if (fd_ >= 0 && has_more())
    world_.service.change(fd_, awaited());
  return true;
}

// The oldest that waits. False: there is no room for it.
bool Connection::flush_handed() {
  const Handed& next = handed_.front();
  iovec io{const_cast<std::byte*>(next.frame.data()), next.frame.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof next.fd);
  memcpy(CMSG_DATA(c), &next.fd, sizeof next.fd);
  const ssize_t n = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n < 0 && passing(errno))
    return false;
  if (n > 0) { // the descriptor has gone along
    has_sent_ = true;
    out_.insert(out_.end(), next.frame.begin() + n, next.frame.end());
  }
  ::close(next.fd);
  handed_.pop_front();
  return true;
}

} // namespace adverb::link
