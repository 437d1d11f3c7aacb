// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "catch.h"

#include "link/proof.h"
#include "link/wire.h"
#include "tools/doctor.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace adverb::tools;
namespace wire = adverb::link::wire;

namespace {

using Bytes = std::vector<std::byte>;

using Level = Check::Level;
using wire::Answer;

/// A port of 127.0.0.1 with a listener that says so to all who connect and answers their hellos, or
/// one that refuses when `serve` is false.
struct Port {
  /// False: the connection is closed instead.
  using Answering = std::function<bool(const wire::Hello&, wire::HelloAck&)>;

  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  uint16_t number = 0;
  std::thread speaker;

  explicit Port(bool serve, const Bytes& says = {}, const Answering& answers = {}) {
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
      speaker = std::thread([this, says, answers] {
        for (int peer; (peer = accept(fd, nullptr, nullptr)) >= 0; close(peer)) {
          send(peer, says.data(), says.size(), MSG_NOSIGNAL);
          std::array<std::byte, sizeof(wire::Header) + sizeof(wire::Hello)> heard;
          if (recv(peer, heard.data(), heard.size(), MSG_WAITALL) != ssize_t{heard.size()})
            continue;
          wire::Frame frame{};
          wire::HelloAck ack{};
          ack.answer = static_cast<uint32_t>(Answer::no_such_qp);
          if (wire::parse(heard, frame) != wire::Parse::complete || !answers ||
              !answers(wire::get<wire::Hello>(frame), ack))
            continue;
          const auto answer = wire::frame(ack);
          send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
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

// With that answer; as it is made, "no such queue pair".
Port::Answering answer_with(const std::optional<wire::HelloAck>& with) {
  return [with](const wire::Hello&, wire::HelloAck& ack) {
    ack = with.value_or(ack);
    return true;
  };
}

/// What a walk to 127.0.0.1 said.
struct Steps {
  std::vector<Check> checks;

  const Check& operator[](const std::string& name) const {
    const auto at = std::ranges::find(checks, "peer 127.0.0.1, " + name, &Check::what);
    REQUIRE(at != checks.end());
    return *at;
  }
  /// The step that did; each has a remedy, and those behind it were not reached.
  std::string failed() const {
    std::string name;
    for (const Check& check : checks) {
      if (!name.empty())
        CHECK(check.level == Level::not_reached);
      if (check.level != Level::fail)
        continue;
      CHECK_FALSE(check.remedy.empty());
      name = check.what.substr(check.what.rfind(' ') + 1);
    }
    return name;
  }
};

/// A host laid out in a folder.
struct Host {
  std::string root;
  std::vector<std::string> tried; // devices
  int error = 0;                  // of registering

  Host() {
    char name[] = "/tmp/adverb-doctor-XXXXXX";
    root = mkdtemp(name);
  }
  ~Host() { std::filesystem::remove_all(root); }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  void put(const std::string& path, const std::string& line) const {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << line << "\n";
  }
  /// One whose GID is 127.0.0.1.
  void add(const std::string& device, const std::string& net_device,
           const std::string& state) const {
    const std::string port = "/sys/class/infiniband/" + device + "/ports/1/";
    put(port + "state", state);
    put(port + "gids/0", "0000:0000:0000:0000:0000:ffff:7f00:0001");
    put(port + "gid_attrs/types/0", "RoCE v2");
    put(port + "gid_attrs/ndevs/0", net_device);
    put("/sys/class/net/" + net_device + "/mtu", "1500");
  }
  Steps walk(const adverb::policy::LinkSettings& link, uint16_t port) {
    PeerAddress peer;
    REQUIRE(parse_peer("127.0.0.1:" + std::to_string(port), peer));
    Report report;
    const HostFiles files(root);
    check_peer(report, link, peer, {files, [this](const std::string& device) {
                                      tried.push_back(device);
                                      return error;
                                    }});
    return {report.checks()};
  }
};

} // namespace

TEST_CASE("what backend odp can do on a device is told with what that lacks") {
  ibv_device_attr_ex device{};
  auto& caps = device.odp_caps;
  CHECK(on_demand_by(device) ==
        "backend odp would pin all regions: the device has no on-demand paging");
  caps.general_caps = IBV_ODP_SUPPORT;
  auto& rc = caps.per_transport_caps.rc_odp_caps;
  rc = IBV_ODP_SUPPORT_WRITE;
  CHECK(on_demand_by(device) == "backend odp would pin all regions: the device does not SEND from "
                                "on-demand memory by RC");
  rc |= IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_READ;
  CHECK(on_demand_by(device) ==
        "backend odp registers regions on demand, but not those with LOCAL_WRITE, as the device "
        "does not RECV to on-demand memory by SRQs; none once the program has a UC or UD queue "
        "pair");
  rc |= IBV_ODP_SUPPORT_SRQ_RECV; // as mlx5
  caps.per_transport_caps.ud_odp_caps =
      IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
  CHECK(on_demand_by(device) ==
        "backend odp registers regions on demand, but not those with REMOTE_ATOMIC, as the device "
        "does no ATOMIC on on-demand memory by RC; none once the program has a UC queue pair");
  rc |= IBV_ODP_SUPPORT_ATOMIC;
  caps.per_transport_caps.uc_odp_caps =
      IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE;
  CHECK(on_demand_by(device) == "backend odp registers regions on demand");
  device.orig_attr.vendor_id = 0xffffff;
  CHECK(on_demand_by(device) ==
        "backend odp would pin all regions: soft-RoCE misplaces bytes of on-demand memory");
}

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

TEST_CASE("a peer that answers is walked through to the level of its links", "[doctor]") {
  adverb::policy::LinkSettings link;
  const Port served(true, wire::frame(wire::Banner{}), answer_with(std::nullopt));
  Host host;
  host.add("rxe0", "lo", "4: ACTIVE");
  const Steps here = host.walk(link, served.number);
  CHECK(here.failed().empty());
  CHECK(here["path"].finding == "rxe0 port 1, GID index 0 (127.0.0.1, RoCE v2), ACTIVE");
  CHECK(here["connection"].level == Level::ok);
  CHECK(here["banner"].level == Level::ok);
  CHECK(here["hello"].finding.find("no such queue pair") != std::string::npos);
  CHECK(host.tried == std::vector<std::string>{"rxe0"});
  CHECK(here["level"].finding.find("of level vouched") != std::string::npos);
  link.proof = adverb::policy::Proof::all;
  CHECK(host.walk(link, served.number)["level"].finding.find("of level host") != std::string::npos);
  link.key = {1, 2, 3};
  const Steps keyed = host.walk(link, served.number);
  CHECK(keyed["level"].finding.find("of level key") != std::string::npos);
  CHECK(keyed["hello"].finding.find("not known yet") != std::string::npos);
}

TEST_CASE("each step that fails is named with what to do, and those behind it are not reached",
          "[doctor]") {
  auto other = wire::frame(wire::Banner{});
  other[sizeof(uint32_t)] = std::byte{9}; // version
  wire::Banner later{};
  later.speaks = {7, 9, 0};
  const char* const http = "HTTP/1.1 400 Bad Request\r\n\r\n";
  Bytes web(strlen(http));
  memcpy(web.data(), http, web.size());
  const Bytes good = wire::frame(wire::Banner{});
  const auto refusal = [](Answer answer) {
    wire::HelloAck ack{};
    ack.answer = static_cast<uint32_t>(answer);
    return answer_with(ack);
  };
  const auto shows = [](uint8_t mac) {
    return [mac](const wire::Hello&, wire::HelloAck& ack) {
      ack.answer = 0;
      ack.mac[0] = mac;
      return true;
    };
  };
  struct Case {
    Bytes says;
    Port::Answering answers;
    const char* step;
    const char* finding;
    bool keyed = false;
  };
  const Answer refused = Answer::refused;
  for (const auto& [says, answers, step, finding, keyed] :
       {Case{other, {}, "banner", "versions 9 to 9"},
        Case{wire::frame(later), {}, "banner", "versions 7 to 9"},
        Case{web, {}, "banner", "not adverb"}, Case{{}, {}, "banner", "says nothing"},
        Case{good, refusal(refused), "hello", "link.allow"},
        Case{good, refusal(Answer::no_resources), "hello", "no room"},
        Case{good, [](const wire::Hello&, wire::HelloAck&) { return false; }, "hello", "closed"},
        Case{good, shows(1), "hello", "has a link.key_file, this one has none"},
        Case{good, shows(0), "hello", "has no link.key_file", true},
        Case{good, shows(1), "hello", "is another", true}}) {
    adverb::policy::LinkSettings link;
    if (keyed)
      link.key = {1, 2, 3};
    const Port served(true, says, answers);
    Host host;
    host.add("rxe0", "lo", "4: ACTIVE");
    const Steps walk = host.walk(link, served.number);
    INFO(finding);
    CHECK(walk.failed() == step);
    CHECK(walk[step].finding.find(finding) != std::string::npos);
    CHECK(host.tried.empty());
  }
  adverb::policy::LinkSettings link;
  const Port closed(false);
  Host host;
  const Steps walk = host.walk(link, closed.number);
  CHECK(walk.failed() == "connection");
  CHECK(walk["connection"].remedy.find("adverb broker") != std::string::npos);
}

TEST_CASE("a key that is the right one is known for it", "[doctor]") {
  adverb::policy::LinkSettings link;
  link.key = {1, 2, 3};
  const Port served(true, wire::frame(wire::Banner{}),
                    [&](const wire::Hello& hello, wire::HelloAck& ack) {
                      ack.answer = 0;
                      ack.nonce[0] = 7;
                      ack.mac = adverb::link::know_key(link.key, 'o', hello.nonce, ack.nonce);
                      return true;
                    });
  Host host;
  host.add("rxe0", "lo", "4: ACTIVE");
  const Steps walk = host.walk(link, served.number);
  CHECK(walk.failed().empty());
  CHECK(walk["hello"].finding.find("the right one") != std::string::npos);
}

TEST_CASE("the device on the path has to be active, in this network and able to be proven by",
          "[doctor]") {
  const Port served(true, wire::frame(wire::Banner{}), answer_with(std::nullopt));
  const adverb::policy::LinkSettings link;
  Host none;
  const Steps without = none.walk(link, served.number);
  CHECK(without.failed().empty());
  CHECK(without["path"].level == Level::warn);
  CHECK(without["hello"].level == Level::ok);
  CHECK(without["slot"].level == Level::not_reached);
  Host down;
  down.add("rxe0", "lo", "1: DOWN");
  CHECK(down.walk(link, served.number).failed() == "path");
  Host away;
  away.add("rxe0", "eth7", "4: ACTIVE");
  std::filesystem::remove_all(away.root + "/sys/class/net/eth7");
  const Steps walk = away.walk(link, served.number);
  CHECK(walk.failed() == "path");
  CHECK(walk["path"].finding.find("eth7 is not in this network namespace") != std::string::npos);
  Host refuses;
  refuses.add("rxe0", "lo", "4: ACTIVE");
  refuses.error = ENOMEM;
  const Steps no_slot = refuses.walk(link, served.number);
  CHECK(no_slot.failed() == "slot");
  CHECK(no_slot["slot"].remedy.find("locked memory") != std::string::npos);
}

TEST_CASE("an address that this policy does not let link is a warning", "[doctor]") {
  adverb::policy::LinkSettings link;
  const Port served(true, wire::frame(wire::Banner{}), answer_with(std::nullopt));
  link.allow.push_back({{}, 128}); // some other
  Host host;
  const Steps walk = host.walk(link, served.number);
  CHECK(walk.checks.back().level == Level::warn);
  CHECK(walk.checks.back().finding.find("link.allow") != std::string::npos);
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
