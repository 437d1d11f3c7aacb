// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "catch.h"

#include "tools/doctor.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace adverb::tools;

namespace {

/// A port of 127.0.0.1 with a listener, or one that refuses when `serve` is false.
struct Port {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  uint16_t number = 0;

  explicit Port(bool serve) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        (serve && listen(fd, 1) != 0) ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      abort();
    number = ntohs(address.sin_port);
  }
  ~Port() { close(fd); }
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
    const Port served(true);
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
