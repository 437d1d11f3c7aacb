// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "catch.h"

#include "link/wire.h"
#include "tools/doctor.h"

#include <arpa/inet.h>
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace adverb::tools;
namespace wire = adverb::link::wire;

namespace {

using Bytes = std::vector<std::byte>;

/// A port of 127.0.0.1 with a listener that says so to all who connect, or one that refuses when
/// `serve` is false.
struct Port {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  uint16_t number = 0;
  std::thread speaker;

  explicit Port(bool serve, const Bytes& says = {}) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        (serve && listen(fd, 1) != 0) ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      abort();
    number = ntohs(address.sin_port);
    if (!says.empty())
      speaker = std::thread([this, says] {
        for (int peer; (peer = accept(fd, nullptr, nullptr)) >= 0; close(peer)) {
          send(peer, says.data(), says.size(), MSG_NOSIGNAL);
          char end;
          while (recv(peer, &end, sizeof end, 0) > 0) {
          }
        }
      });
  }
  ~Port() {
    shutdown(fd, SHUT_RDWR);
    if (speaker.joinable())
      speaker.join();
    close(fd);
  }
};

} // namespace

TEST_CASE("a peer is an address with or without a port", "[doctor]") {
  PeerAddress peer;
  peer.port = 7;
  REQUIRE(parse_peer("192.0.2.1", peer));
  CHECK(peer.port == 7);
  CHECK(IN6_IS_ADDR_V4MAPPED(&peer.address));
  REQUIRE(parse_peer("192.0.2.1:65535", peer));
  CHECK(peer.port == 65535);
  REQUIRE(parse_peer("2001:db8::1", peer));
  CHECK(peer.text == "2001:db8::1");
  REQUIRE(parse_peer("[2001:db8::1]:9", peer));
  CHECK(peer.port == 9);
  REQUIRE(parse_peer("fe80::1%lo", peer));
  CHECK(peer.scope != 0);
  for (const char* bad :
       {"", "host", "192.0.2", "192.0.2.1:", "192.0.2.1:0", "192.0.2.1:65536", "192.0.2.1:x",
        "[2001:db8::1", "[2001:db8::1]9", "[2001:db8::1]:", "fe80::1%nosuchdevice", ":80", "[]:80"})
    CHECK_FALSE(parse_peer(bad, peer));
}

TEST_CASE("a served port is ok, a refused one fails with what to start", "[doctor]") {
  adverb::policy::LinkSettings link;
  PeerAddress peer;
  REQUIRE(parse_peer("127.0.0.1", peer));
  {
    const Port served(true, wire::frame(wire::Banner{}));
    peer.port = served.number;
    Report open;
    check_peer(open, link, peer);
    CHECK(open.checks().size() == 1);
    link.allow.push_back({{}, 128}); // some other
    Report report;
    check_peer(report, link, peer);
    REQUIRE(report.checks().size() == 2);
    CHECK(report.checks()[0].level == Check::Level::ok);
    // Not in link.allow: the hello of another host would be refused.
    CHECK(report.checks()[1].level == Check::Level::warn);
  }
  const Port closed(false);
  peer.port = closed.number;
  Report report;
  check_peer(report, link, peer);
  REQUIRE(report.checks().size() == 1);
  CHECK(report.checks()[0].level == Check::Level::fail);
  CHECK(report.checks()[0].remedy.find("adverb broker") != std::string::npos);
}

TEST_CASE("who serves a port and is no adverb that could be linked with is told apart",
          "[doctor]") {
  auto other = wire::frame(wire::Banner{});
  other[sizeof(uint32_t)] = std::byte{9}; // version
  wire::Banner later{};
  later.speaks = {7, 9, 0};
  const char* const http = "HTTP/1.1 400 Bad Request\r\n\r\n";
  Bytes web(strlen(http));
  memcpy(web.data(), http, web.size());
  struct Case {
    Bytes says;
    const char* finding;
  };
  for (const auto& [says, finding] :
       {Case{other, "versions 9 to 9"}, Case{wire::frame(later), "versions 7 to 9"},
        Case{web, "not adverb"}, Case{{}, "says nothing"}}) {
    const Port served(true, says);
    PeerAddress peer;
    REQUIRE(parse_peer("127.0.0.1:" + std::to_string(served.number), peer));
    Report report;
    check_peer(report, {}, peer);
    REQUIRE(report.checks().size() == 1);
    CHECK(report.checks()[0].level == Check::Level::fail);
    CHECK(report.checks()[0].finding.find(finding) != std::string::npos);
    CHECK_FALSE(report.checks()[0].remedy.empty());
  }
}

TEST_CASE("a free port of this host is no fault", "[doctor]") {
  adverb::policy::LinkSettings link;
  const Port closed(false);
  link.port = closed.number;
  Report report;
  check_broker(report, link);
  REQUIRE(report.checks().size() == 1);
  CHECK(report.checks()[0].level == Check::Level::ok);
}

TEST_CASE("every check of the host says something", "[doctor]") {
  Report report;
  check_host(report, 16 << 20);
  check_iommu(report, HostFiles());
  check_module(report, HostFiles());
  CHECK(report.checks().size() >= 5);
  for (const Check& check : report.checks()) {
    CHECK_FALSE(check.finding.empty());
    CHECK((check.level == Check::Level::ok || !check.remedy.empty()));
  }
}
