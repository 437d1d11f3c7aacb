// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "tools/doctor_port.h"

#include "link/socket_address.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

namespace adverb::tools {

namespace wire = link::wire;
using Clock = std::chrono::steady_clock;

namespace {

LinkPort::milliseconds since(Clock::time_point begun) {
  return std::chrono::duration_cast<LinkPort::milliseconds>(Clock::now() - begun);
}

} // namespace

LinkPort::~LinkPort() {
  if (fd_ >= 0)
    close(fd_);
}

int LinkPort::connect(const PeerAddress& peer, uint16_t port, milliseconds patience) {
  sockaddr_storage to;
  const socklen_t size = link::socket_address(peer.address, peer.scope, port, to);
  fd_ = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0)
    return errno;
  const auto begun = Clock::now();
  int error = 0;
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&to), size) != 0) {
    error = errno;
    pollfd ready{fd_, POLLOUT, 0};
    if (error == EINPROGRESS) {
      if (poll(&ready, 1, static_cast<int>(patience.count())) == 1) {
        socklen_t length = sizeof error;
        getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length);
      } else {
        error = ETIMEDOUT;
      }
    }
  }
  took_ = since(begun);
  return error;
}

// The next frame, which is to be of that type.
LinkPort::Said LinkPort::hear(wire::Type type, std::vector<std::byte>& payload) {
  const auto begun = Clock::now();
  for (;;) {
    wire::Frame frame{};
    switch (wire::parse(heard_, frame)) {
    case wire::Parse::complete:
      took_ = since(begun);
      if (frame.type != type)
        return Said::nonsense;
      payload.assign(frame.payload.begin(), frame.payload.end());
      heard_.erase(heard_.begin(), heard_.begin() + static_cast<ptrdiff_t>(frame.bytes));
      return Said::good;
    case wire::Parse::wrong_version:
      speaks_ = {frame.version_there, frame.version_there, 0};
      return Said::other_version;
    case wire::Parse::malformed:
      return Said::nonsense;
    case wire::Parse::partial:
      break;
    }
    const auto left = answer_due - (Clock::now() - begun);
    pollfd ready{fd_, POLLIN, 0};
    std::array<std::byte, 256> some;
    if (left <= left.zero() ||
        poll(&ready, 1, static_cast<int>(std::chrono::ceil<milliseconds>(left).count())) != 1)
      return Said::nothing;
    const ssize_t n = recv(fd_, some.data(), some.size(), MSG_DONTWAIT);
    if (n <= 0)
      return Said::closed;
    heard_.insert(heard_.end(), some.begin(), some.begin() + n);
  }
}

LinkPort::Said LinkPort::hear_banner() {
  std::vector<std::byte> payload;
  const Said said = hear(wire::Type::banner, payload);
  if (said != Said::good)
    return said;
  wire::Banner banner;
  memcpy(&banner, payload.data(), sizeof banner);
  speaks_ = banner.speaks;
  return wire::meet(speaks_, wire::Versions{}) ? Said::good : Said::other_version;
}

LinkPort::Said LinkPort::say_hello(const wire::Id& dgid, uint32_t qpn, wire::HelloAck& ack) {
  wire::Hello hello{};
  if (getrandom(hello.process.data(), hello.process.size(), 0) < 0 ||
      getrandom(hello.nonce.data(), hello.nonce.size(), 0) < 0)
    return Said::nothing;
  hello.dgid = dgid;
  hello.dqpn = qpn;
  nonce_ = hello.nonce;
  const auto frame = wire::frame(hello);
  if (send(fd_, frame.data(), frame.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(frame.size()))
    return Said::closed;
  std::vector<std::byte> payload;
  const Said said = hear(wire::Type::hello_ack, payload);
  if (said == Said::good) {
    memcpy(&ack, payload.data(), sizeof ack);
    speaks_ = ack.speaks;
  }
  return said;
}

} // namespace adverb::tools
