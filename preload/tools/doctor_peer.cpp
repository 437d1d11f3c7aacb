// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Who answers on the policy's link.port, here and at a peer.
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/doctor.h"

#include <arpa/inet.h>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

namespace adverb::tools {
namespace {

using std::chrono::milliseconds;

struct Reply {
  int error = 0;            // of connect(), 0 when connected
  milliseconds connected{}; // how long connecting took
};

Reply try_connect(const PeerAddress& peer, uint16_t port, milliseconds patience) {
  // v4-mapped addresses reach IPv4 hosts only where IPv6 is compiled in: use the plain family.
  const bool v4 = IN6_IS_ADDR_V4MAPPED(&peer.address);
  sockaddr_storage storage{};
  socklen_t size = 0;
  if (v4) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    memcpy(&address.sin_addr, peer.address.s6_addr + 12, sizeof address.sin_addr);
    memcpy(&storage, &address, size = sizeof address);
  } else {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    address.sin6_addr = peer.address;
    address.sin6_scope_id = peer.scope;
    memcpy(&storage, &address, size = sizeof address);
  }
  const int fd = socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return {errno, {}};
  const auto begun = std::chrono::steady_clock::now();
  Reply reply;
  if (connect(fd, reinterpret_cast<sockaddr*>(&storage), size) != 0) {
    reply.error = errno;
    pollfd ready{fd, POLLOUT, 0};
    if (reply.error == EINPROGRESS) {
      if (poll(&ready, 1, static_cast<int>(patience.count())) == 1) {
        socklen_t length = sizeof reply.error;
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &reply.error, &length);
      } else {
        reply.error = ETIMEDOUT;
      }
    }
  }
  reply.connected =
      std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begun);
  close(fd);
  return reply;
}

bool parse_address(std::string text, PeerAddress& out) {
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    out.address = {};
    out.address.s6_addr[10] = out.address.s6_addr[11] = 0xff;
    memcpy(out.address.s6_addr + 12, &v4, sizeof v4);
    out.text = text;
    return true;
  }
  out.text = text;
  if (const size_t percent = text.find('%'); percent != text.npos) {
    out.scope = if_nametoindex(text.substr(percent + 1).c_str());
    if (out.scope == 0)
      return false;
    text.resize(percent);
  }
  return inet_pton(AF_INET6, text.c_str(), &out.address) == 1;
}

} // namespace

bool parse_peer(const std::string& text, PeerAddress& out) {
  std::string address = text, port;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == text.npos || (close + 1 < text.size() && text[close + 1] != ':'))
      return false;
    address = text.substr(1, close - 1);
    if (close + 1 < text.size())
      port = text.substr(close + 2);
    if (close + 1 < text.size() && port.empty())
      return false;
  } else if (const size_t colon = text.find(':'); colon != text.npos && colon == text.rfind(':')) {
    address = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty())
      return false;
  }
  if (!port.empty()) {
    const char* end = port.data() + port.size();
    const auto [rest, error] = std::from_chars(port.data(), end, out.port);
    if (error != std::errc() || rest != end || out.port == 0)
      return false;
  }
  return parse_address(address, out);
}

void check_broker(Report& report, const policy::LinkSettings& link) {
  PeerAddress here;
  parse_peer("127.0.0.1", here);
  const Reply reply = try_connect(here, link.port, milliseconds(500));
  if (reply.error == 0)
    report.ok("broker", fmt::format("port {} of this host is served", link.port));
  else if (reply.error == ECONNREFUSED)
    report.ok("broker", fmt::format("port {} of this host is free; the first adverb program of a "
                                    "user serves it, across users `adverb broker` must",
                                    link.port));
  else
    report.fail("broker",
                fmt::format("port {} of this host: {}", link.port, std::strerror(reply.error)),
                "look for packet filters on the loopback device");
}

void check_peer(Report& report, const policy::LinkSettings& link, const PeerAddress& peer) {
  const uint16_t port = peer.port != 0 ? peer.port : link.port;
  const std::string what = fmt::format("peer {}", peer.text);
  const Reply reply = try_connect(peer, port, milliseconds(2000));
  if (reply.error == ECONNREFUSED)
    report.fail(what,
                fmt::format("reached, but nothing serves port {}: it counts as a stock peer", port),
                "start a program there with `adverb run`, or `adverb broker`; compare link.port");
  else if (reply.error != 0)
    report.fail(what, fmt::format("port {}: {}", port, std::strerror(reply.error)),
                "check the route and that packet filters let this port through");
  else if (reply.connected > link.hello_timeout)
    report.warn(what,
                fmt::format("port {} is served, but connecting took {} ms and link.hello_timeout "
                            "is {} ms",
                            port, reply.connected.count(), link.hello_timeout.count()),
                "raise link.hello_timeout, else it may count as a stock peer");
  else
    report.ok(what,
              fmt::format("port {} is served; connected in {} ms", port, reply.connected.count()));
  if (reply.error == 0 && link.key.empty() && !link.allow.empty() && !link.allowed(peer.address))
    report.warn(
        what,
        "link.allow does not hold this address, so that its programs cannot link to "
        "ours",
        "add it to link.allow, or leave link.allow out: who links has to prove that a queue "
        "pair is its own, wherever it is");
}

} // namespace adverb::tools
