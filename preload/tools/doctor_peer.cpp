// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Who answers on the policy's link.port, here and at a peer; and the way of a proof, step by step.
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "link/address.h"
#include "link/proof.h"
#include "link/wire.h"
#include "tools/doctor.h"
#include "tools/doctor_path.h"
#include "tools/doctor_port.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <net/if.h>
#include <string_view>

#include <fmt/format.h>

namespace adverb::tools {
namespace {

namespace wire = link::wire;
using Said = LinkPort::Said;
using std::chrono::milliseconds;
using wire::Answer;

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

// What is to be said of one thing.
struct Finding {
  Check::Level level;
  std::string finding;
  std::string remedy;
};
Finding ok(std::string finding) {
  return {Check::Level::ok, std::move(finding), {}};
}
Finding warn(std::string finding, std::string remedy) {
  return {Check::Level::warn, std::move(finding), std::move(remedy)};
}
Finding fail(std::string finding, std::string remedy) {
  return {Check::Level::fail, std::move(finding), std::move(remedy)};
}

Finding other_version(const LinkPort& there) {
  return fail(fmt::format("its adverb speaks versions {} to {} of links, this one {} to {}",
                          there.speaks().oldest, there.speaks().newest, wire::version_oldest,
                          wire::version),
              "run the same adverb on both sides; until then its regions cannot be reached");
}

// Whether who serves the port is a broker that this adverb can link by.
Finding judge_banner(uint16_t port, LinkPort& there) {
  switch (there.hear_banner()) {
  case Said::good:
    return ok(fmt::format("port {} is served by adverb, which speaks versions {} to {} of links",
                          port, there.speaks().oldest, there.speaks().newest));
  case Said::other_version:
    return other_version(there);
  case Said::nonsense:
    return fail(fmt::format("port {} is served by something that is not adverb", port),
                "give link.port a number that nothing else uses, the same on all hosts");
  default:
    return fail(fmt::format("port {} is served, but its process says nothing for {} s: it is not "
                            "adverb, or it is stopped",
                            port, LinkPort::answer_due.count() / 1000),
                "see there whose port it is: ss -Hltnp 'sport = :PORT'");
  }
}

// The steps to a link, in their order. Behind one that fails none is reached.
class Walk {
public:
  Walk(Report& report, const policy::LinkSettings& link, const PeerAddress& peer,
       const ThisHost& here)
      : report_(report), link_(link), peer_(peer), here_(here),
        port_(peer.port != 0 ? peer.port : link.port) {}

  void go() {
    struct Step {
      const char* name;
      Finding (Walk::*take)();
    };
    constexpr Step steps[] = {{"path", &Walk::path},     {"connection", &Walk::connection},
                              {"banner", &Walk::banner}, {"hello", &Walk::hello},
                              {"slot", &Walk::slot},     {"level", &Walk::level}};
    bool over = false;
    for (const Step& step : steps) {
      const std::string what = fmt::format("peer {}, {}", peer_.text, step.name);
      Finding said{Check::Level::not_reached, "not reached", {}};
      if (!over)
        said = (this->*step.take)();
      over = over || said.level == Check::Level::fail;
      report_.add(said.level, what, said.finding, said.remedy);
    }
  }

private:
  Finding path() {
    const auto source = source_towards(peer_.address, peer_.scope);
    if (!source)
      return fail(fmt::format("no route: {}", std::strerror(errno)),
                  "see `ip route get` with that address");
    sockaddr_in6 from{};
    from.sin6_addr = *source;
    path_ = find_path(here_.files, *source);
    if (const auto names = net_devices_elsewhere(here_.files); !path_ && !names.empty())
      return fail(elsewhere(names.front()), elsewhere_remedy);
    if (!path_)
      return warn(
          fmt::format("the way there begins at {}, which is a GID of no RDMA device of this "
                      "host",
                      link::to_text(from)),
          "name the peer by its address in the RDMA network (`rdma link` lists this host's "
          "devices); for an InfiniBand peer that link.peers names, no more can be checked");
    const std::string where = fmt::format(
        "{} port {}, GID index {} ({}{}), {}", path_->device, path_->port, path_->gid_index,
        link::to_text(from), path_->gid_type.empty() ? "" : ", " + path_->gid_type, path_->state);
    if (!path_->here)
      return fail(where + ": " + elsewhere(path_->net_device), elsewhere_remedy);
    if (path_->state != "ACTIVE")
      return fail(where, "bring its link up");
    return ok(where);
  }

  Finding connection() {
    const int error =
        there_.connect(peer_, port_, std::max(link_.hello_timeout, milliseconds(2000)));
    if (error == ECONNREFUSED)
      return fail(
          fmt::format("reached, but nothing serves port {}: it counts as a stock peer", port_),
          "start a program there with `adverb run`, or `adverb broker`; compare link.port");
    if (error != 0)
      return fail(fmt::format("port {}: {}", port_, std::strerror(error)),
                  "check the route and that packet filters let this port through");
    if (there_.took() > link_.hello_timeout)
      return warn(fmt::format("connecting to port {} took {} ms and link.hello_timeout is {} ms",
                              port_, there_.took().count(), link_.hello_timeout.count()),
                  "raise link.hello_timeout; otherwise it may count as a stock peer");
    return ok(fmt::format("port {}, connected in {} ms", port_, there_.took().count()));
  }

  Finding banner() { return judge_banner(port_, there_); }

  Finding hello() {
    wire::Id gid;
    memcpy(gid.data(), &peer_.address, gid.size());
    wire::HelloAck ack{};
    switch (there_.say_hello(gid, nobodys, ack)) {
    case Said::good:
      return judge(ack);
    case Said::other_version:
      return other_version(there_);
    case Said::nonsense:
      return fail("the answer to a hello is not a message of adverb",
                  "run the same adverb on both sides");
    case Said::closed:
      return fail("the connection is closed without an answer to a hello",
                  "look into the log of `adverb broker` there");
    default:
      return fail(
          fmt::format("a hello is not answered for {} s", LinkPort::answer_due.count() / 1000),
          "see there whether the process that serves the port is stopped");
    }
  }

  Finding judge(const wire::HelloAck& ack) {
    const auto took = there_.took().count();
    switch (static_cast<Answer>(ack.answer)) {
    case Answer::no_such_qp:
      return ok(fmt::format("answered in {} ms: no such queue pair, as there is none of that number"
                            "{}",
                            took,
                            link_.key.empty()
                                ? ""
                                : "; only the owner of a queue pair shows the key of "
                                  "link.key_file, so the key there is not known yet"));
    case Answer::ok:
      return judge_key(ack);
    case Answer::wrong_version:
      return other_version(there_);
    case Answer::no_resources:
      return fail("the process there has no room for more links",
                  "raise its limit of descriptors (ulimit -n)");
    default:
      return fail("refused: the policy there has link.allow, which does not hold this host",
                  "add this host to link.allow there");
    }
  }

  // Some process there has a queue pair of that number after all.
  Finding judge_key(const wire::HelloAck& ack) {
    const bool shown = ack.mac != wire::Mac{};
    const std::string both = "give both sides the same link.key_file, or none";
    if (link_.key.empty())
      return shown ? fail("refused: the policy there has a link.key_file, this one has none", both)
                   : ok(fmt::format("answered in {} ms", there_.took().count()));
    if (!shown)
      return fail("the policy there has no link.key_file, this one has", both);
    if (!link::equal(ack.mac, link::know_key(link_.key, 'o', there_.nonce(), ack.nonce)))
      return fail("the key of link.key_file there is another", both);
    return ok(fmt::format("answered in {} ms; the key of link.key_file there is the right one",
                          there_.took().count()));
  }

  Finding slot() {
    if (!path_)
      return {
          Check::Level::not_reached, "not reached: no RDMA device of this host is on the path", {}};
    if (const int error = here_.register_slots(path_->device); error != 0)
      return fail(fmt::format("{} does not register memory at the address that queue pairs are "
                              "proven by ({}): peers that have to prove theirs are refused",
                              path_->device, std::strerror(error)),
                  "raise the limit of locked memory if it is low (ulimit -l); otherwise let the "
                  "policy pin the regions that other hosts reach");
    return ok(fmt::format("{} registers memory at the address that queue pairs are proven by",
                          path_->device));
  }

  Finding level() {
    if (!path_)
      return {Check::Level::not_reached, "not reached", {}};
    const bool own = link::is_own(peer_.address);
    if (own && link::may_vouch(link_))
      return ok("links would be of level vouched with processes of this user or root, because it "
                "is this host; of level host with others");
    if (!link_.key.empty())
      return ok(
          "links would be of level key, if it is the same there: the peer has the key and can "
          "use the queue pair");
    return ok("links would be of level host: the peer is any process that can use the queue pair "
              "on its host; link.key_file demands a key as well");
  }

  // Numbers have 24 bits, and the last one is what multicast is sent to.
  static constexpr uint32_t nobodys = 0xFFFFFF;

  Report& report_;
  const policy::LinkSettings& link_;
  const PeerAddress& peer_;
  const ThisHost& here_;
  const uint16_t port_;
  std::optional<Path> path_;
  LinkPort there_;
};

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
  LinkPort there;
  const int error = there.connect(here, link.port, milliseconds(500));
  if (error == 0) {
    const Finding said = judge_banner(link.port, there);
    report.add(said.level, "broker", said.finding, said.remedy);
  } else if (error == ECONNREFUSED) {
    report.ok("broker",
              fmt::format("port {} of this host is free; the first adverb program of a user serves "
                          "it, and programs of several users need `adverb broker`",
                          link.port));
  } else {
    report.fail("broker", fmt::format("port {} of this host: {}", link.port, std::strerror(error)),
                "look for packet filters on the loopback device");
  }
}

void check_peer(Report& report, const policy::LinkSettings& link, const PeerAddress& peer,
                const ThisHost& here) {
  Walk(report, link, peer, here).go();
  if (link.key.empty() && !link.allow.empty() && !link.allowed(peer.address))
    report.warn(fmt::format("peer {}", peer.text),
                "link.allow does not hold this address, so its programs cannot link to this host's",
                "add it to link.allow, or leave link.allow out: in any case a peer has to prove "
                "that a queue pair is its own");
}

} // namespace adverb::tools
