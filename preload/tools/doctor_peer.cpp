// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Who answers on the policy's link.port, here and at a peer.
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "link/wire.h"
#include "tools/doctor.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

namespace adverb::tools {
namespace {

namespace wire = link::wire;
using std::chrono::milliseconds;

struct Reply {
  int error = 0;            // of connect(), 0 when connected
  milliseconds connected{}; // how long connecting took
  enum class Said : uint8_t { nothing, banner, other_version, nonsense } said = Said::nothing;
  wire::Versions speaks; // if it was a banner
};

// A broker speaks first. As long as a program waits for it (link/seeker.cpp).
constexpr milliseconds banner_due{3000};

void hear_banner(int fd, Reply& reply) {
  const auto begun = std::chrono::steady_clock::now();
  std::vector<std::byte> heard;
  for (;;) {
    const auto left = banner_due - (std::chrono::steady_clock::now() - begun);
    pollfd ready{fd, POLLIN, 0};
    std::array<std::byte, 256> some;
    if (left <= left.zero() ||
        poll(&ready, 1, static_cast<int>(std::chrono::ceil<milliseconds>(left).count())) != 1)
      return;
    const ssize_t n = recv(fd, some.data(), some.size(), MSG_DONTWAIT);
    if (n <= 0)
      return;
    heard.insert(heard.end(), some.begin(), some.begin() + n);
    wire::Frame frame{};
    const auto found = wire::parse(heard, frame);
    if (found == wire::Parse::partial)
      continue;
    if (found == wire::Parse::wrong_version) {
      reply.said = Reply::Said::other_version;
      reply.speaks = {frame.version_there, frame.version_there, 0};
    } else if (found == wire::Parse::complete && frame.type == wire::Type::banner) {
      reply.speaks = wire::get<wire::Banner>(frame).speaks;
      reply.said = wire::meet(reply.speaks, wire::Versions{}) ? Reply::Said::banner
                                                              : Reply::Said::other_version;
    } else {
      reply.said = Reply::Said::nonsense;
    }
    return;
  }
}

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
  Reply reply;
  if (fd < 0) {
    reply.error = errno;
    return reply;
  }
  const auto begun = std::chrono::steady_clock::now();
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
  if (reply.error == 0)
    hear_banner(fd, reply);
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

// Whether who serves the port is a broker that this adverb can link by.
void check_banner(Report& report, const std::string& what, uint16_t port, const Reply& reply) {
  switch (reply.said) {
  case Reply::Said::banner:
    report.ok(what, fmt::format("port {} is served by adverb; connected in {} ms", port,
                                reply.connected.count()));
    break;
  case Reply::Said::other_version:
    report.fail(what,
                fmt::format("its adverb speaks versions {} to {} of links, this one {} to {}",
                            reply.speaks.oldest, reply.speaks.newest, wire::version_oldest,
                            wire::version),
                "run the same adverb on both sides; until then its regions cannot be reached");
    break;
  case Reply::Said::nonsense:
    report.fail(what, fmt::format("port {} is served by something that is not adverb", port),
                "give link.port a number that nothing else uses, the same on all hosts");
    break;
  case Reply::Said::nothing:
    report.fail(what,
                fmt::format("port {} is served, but whoever does it says nothing for {} s: it is "
                            "not adverb, or its process is stopped",
                            port, banner_due.count() / 1000),
                "see there whose port it is: ss -Hltnp 'sport = :PORT'");
    break;
  }
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
    check_banner(report, "broker", link.port, reply);
  else if (reply.error == ECONNREFUSED)
    report.ok("broker", fmt::format("port {} of this host is free; the first adverb program of a "
                                    "user has it served, across users `adverb broker` must",
                                    link.port));
  else
    report.fail("broker",
                fmt::format("port {} of this host: {}", link.port, std::strerror(reply.error)),
                "look for packet filters on the loopback device");
}

void check_peer(Report& report, const policy::LinkSettings& link, const PeerAddress& peer) {
  const uint16_t port = peer.port != 0 ? peer.port : link.port;
  const std::string what = fmt::format("peer {}", peer.text);
  const Reply reply = try_connect(peer, port, std::max(link.hello_timeout, milliseconds(2000)));
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
    check_banner(report, what, port, reply);
  if (reply.error == 0 && link.key.empty() && !link.allow.empty() && !link.allowed(peer.address))
    report.warn(
        what,
        "link.allow does not hold this address, so that its programs cannot link to "
        "ours",
        "add it to link.allow, or leave link.allow out: who links has to prove that a queue "
        "pair is its own, wherever it is");
}

} // namespace adverb::tools
