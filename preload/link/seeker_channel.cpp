// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A channel to the owner's process for each path and protocol, which all queue pairs on it share.
#include "link/companions.h"
#include "link/identity.h"
#include "link/seeker.h"
#include "link/seeker_parts.h"
#include "policy/rule.h"
#include "world/world.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace adverb::link {

using observe::Counter;
using wire::Answer;

namespace {
constexpr uint32_t credits_max = UINT16_MAX; // what a frame can say
constexpr uint32_t message_least = 256;      // as the owner has it
// The first time that an owner has no room it is asked again at once, then after pauses, 14 s in
// all.
constexpr unsigned room_tries = 20;
constexpr std::chrono::milliseconds room_pause_first{2};
constexpr std::chrono::milliseconds room_pause_most{1000};

bool may_go_by_packets(const policy::Policy& policy, const LocalQp& qp) noexcept {
  in6_addr address{};
  memcpy(&address, qp.ah.grh.dgid.raw, sizeof address);
  return policy.ask<&policy::Rule::reliability>(
             {qp.device->name, qp.type, qp.ah.is_global != 0 ? &address : nullptr}) !=
         policy::Reliability::device;
}
} // namespace

std::string seeking::path_key(const LocalQp& qp, uint8_t protocol) {
  std::string key = std::to_string(protocol) + "/" + qp.device->name + "/" +
                    std::to_string(qp.ah.port_num) + "/" + std::to_string(qp.pkey_index) + "/" +
                    std::to_string(qp.ah.grh.sgid_index) + "/" + std::to_string(qp.ah.dlid) + "/";
  key.append(reinterpret_cast<const char*>(qp.ah.grh.dgid.raw), 16);
  return key;
}

bool Seeker::has_met(const LocalQp& qp, uint8_t protocol) const {
  return met_.has(seeking::path_key(qp, protocol));
}

// By packets, if the policy says so of the peer and the owner takes such ones; otherwise as ever.
std::shared_ptr<Companion> Seeker::make_companion(const Link& link, const Search& search) {
  const auto device = devices_.get(search.qp.device);
  if (!device)
    return nullptr;
  const LocalQp& qp = search.qp;
  if (may_go_by_packets(world_.policy(), qp)) {
    if (link.no_packets != nullptr) {
      if (world_.log.once("packets-" + link.host))
        world_.log.warn("{}: the adverb there {}; requests are carried by the device's "
                        "reliability",
                        link.host, link.no_packets);
    } else if (auto made = create_companion(world_, device, Channel::Role::client, search.protocol,
                                            credits_max, &qp)) {
      return made;
    } else if (world_.log.once(std::string("packets on ") + qp.device->name)) {
      world_.log.warn("{}: reliability in software cannot be had: {}; requests are carried by the "
                      "device's reliability",
                      qp.device->name,
                      errno == ENOMEM ? "the policy's \"staging\", or RLIMIT_MEMLOCK, has no room "
                                        "for the buffers of packets; raise it"
                                      : strerror(errno));
    }
  }
  return create_companion(world_, device, Channel::Role::client, search.protocol, credits_max,
                          nullptr);
}

// A search that is not bound yet sees to it that there is one, or will be.
void Seeker::want_channel(const std::shared_ptr<Link>& link,
                          const std::shared_ptr<Search>& search) {
  if (search->finished)
    return;
  Link::Path& path = link->paths[seeking::path_key(search->qp, search->protocol->id())];
  if (path.channel && path.channel->down()) {
    auto waiting = std::move(path.waiting);
    path = {};
    path.waiting = std::move(waiting);
  }
  if (path.up) {
    if (search->remote_handle != 0)
      finish(search,
             {Verdict::adverb, path.channel, search->remote_handle, {}, true, search->proven});
    return;
  }
  if (std::ranges::find(path.waiting, search) == path.waiting.end())
    path.waiting.push_back(search);
  if (path.channel || path.again != 0)
    return;
  // Whether the owner takes packets its answer to the hello says. The bind's asks once more.
  if (!link->ready && may_go_by_packets(world_.policy(), search->qp))
    return;
  path.channel = make_companion(*link, *search);
  if (!path.channel) {
    for (const auto& s : std::exchange(path.waiting, {}))
      if (s->remote_handle != 0) // else when it is bound
        finish(s, {Verdict::stock, nullptr, 0, "no companion queue pair can be made"});
    return;
  }
  path.protocol = search->protocol;
  path.qp = search->qp;
  wire::Companion& request = path.asked;
  request = {};
  request.handle = search->qp.handle;
  request.remote_handle = search->remote_handle;
  request.nonce = random_id(world_.entropy);
  request.qpn = path.channel->qpn();
  request.psn = path.channel->psn();
  request.credits = static_cast<uint16_t>(path.channel->credits());
  request.protocol = path.protocol->id();
  request.protocol_version = path.protocol->version();
  request.message_max = static_cast<uint32_t>(path.channel->message_max());
  request.timeout = Companion::timeout_for(path.qp);
  if (const auto address = path.channel->packet_address())
    link->connection->send(wire::frame(wire::PacketCompanion{request, *address}));
  else
    link->connection->send(wire::frame(request));
}

// The owner has no room for another channel just now, or had to give this one up.
void Seeker::want_channel_later(const std::shared_ptr<Link>& link,
                                const std::shared_ptr<Search>& search, unsigned tries) {
  const std::string key = seeking::path_key(search->qp, search->protocol->id());
  Link::Path& path = link->paths[key];
  path.tries = std::max(path.tries, tries);
  if (path.channel || path.again != 0 || tries <= 1)
    return want_channel(link, search);
  if (tries > room_tries)
    return finish(search, {Verdict::refused, nullptr, 0,
                           "the peer has no room for another channel; other peers hold too many"});
  path.waiting.push_back(search);
  path.again = world_.service.after(
      std::min(room_pause_first * (1U << std::min(tries, 16U)), room_pause_most),
      [this, weak = std::weak_ptr(link), key] {
        const auto link = weak.lock();
        const auto at =
            link ? link->paths.find(key) : std::map<std::string, Link::Path>::iterator{};
        if (!link || at == link->paths.end())
          return;
        at->second.again = 0;
        for (const auto& s : std::exchange(at->second.waiting, {}))
          want_channel(link, s);
      });
}

void Seeker::on_packet_companion_ack(const std::shared_ptr<Link>& link,
                                     const wire::PacketCompanionAck& ack) {
  on_companion_ack(link, ack.companion, &ack.address);
}

void Seeker::on_companion_ack(const std::shared_ptr<Link>& link, const wire::CompanionAck& ack,
                              const wire::PacketAddress* packets) {
  const auto at = std::find_if(link->paths.begin(), link->paths.end(), [&](const auto& entry) {
    const Link::Path& path = entry.second;
    return path.channel && !path.up && path.qp.handle == ack.handle &&
           path.protocol->id() == ack.protocol &&
           path.channel->packet_address().has_value() == (packets != nullptr);
  });
  if (at == link->paths.end())
    return;
  Link::Path& path = at->second;
  const std::string key = at->first;
  if (packets != nullptr && ack.answer == static_cast<uint32_t>(Answer::no_resources)) {
    link->no_packets = "has no room for the buffers of packets (\"staging\" of its policy)";
    const auto waiting = std::move(path.waiting);
    link->paths.erase(at);
    for (const auto& s : waiting)
      want_channel(link, s);
    return;
  }
  const bool gone = ack.answer == static_cast<uint32_t>(Answer::no_such_qp);
  if (gone || ack.answer == static_cast<uint32_t>(Answer::not_ready)) {
    // The queue pair the path was asked for has gone at the peer, or is not there yet and asks once
    // it is; the others ask for themselves.
    const auto waiting = std::move(path.waiting);
    const unsigned tries = path.tries + 1;
    link->paths.erase(at);
    for (const auto& s : waiting) {
      if (s->qp.handle == ack.handle && !gone && s->remote_handle != 0)
        want_channel_later(link, s, tries);
      else if (s->qp.handle != ack.handle)
        want_channel(link, s);
      else if (s->remote_handle != 0)
        finish(s, {Verdict::stock, nullptr, 0, "the peer's queue pair is gone"});
    }
    return;
  }
  const auto settle = [this, link, key, asked = std::weak_ptr(path.channel)](const char* refusal) {
    const auto found = link->paths.find(key);
    if (found == link->paths.end() || found->second.channel != asked.lock())
      return;
    found->second.up = refusal == nullptr;
    if (refusal == nullptr)
      met_.add(key);
    for (const auto& s : std::exchange(found->second.waiting, {}))
      if (s->remote_handle != 0) // else it asks for it once more when it is bound
        finish(s, refusal == nullptr ? Bound{Verdict::adverb,
                                             found->second.channel,
                                             s->remote_handle,
                                             {},
                                             true,
                                             s->proven}
                                     : Bound{Verdict::refused, nullptr, 0, refusal});
    if (refusal != nullptr)
      link->paths.erase(found);
    else
      offer_held(link);
  };
  if (ack.answer != 0) {
    if (ack.answer == static_cast<uint32_t>(Answer::no_resources))
      link->who->count(Peer::Number::bound_channels);
    settle(ack.answer == static_cast<uint32_t>(Answer::no_such_protocol)
               ? "the peer's adverb does not serve what the channel is for"
               : "the peer cannot make a companion queue pair");
    return;
  }
  // With none nothing would ever be sent, and nobody would hear of it.
  if (ack.credits == 0 || ack.message_max <= message_least) {
    world_.counters.count(Counter::malformed_messages);
    link->who->count(Peer::Number::malformed_messages);
    settle("the peer's companion queue pair takes no messages");
    return;
  }
  path.answered = ack;
  path.channel->set_peer(link->who);
  const auto bytes = std::as_bytes(std::span(path.asked.nonce));
  if (path.channel->connect(path.qp,
                            {ack.qpn, ack.psn, ack.credits, ack.message_max, ack.protocol_version,
                             path.asked.timeout,
                             packets != nullptr ? std::optional(*packets) : std::nullopt},
                            {bytes.begin(), bytes.end()}, [this, link, settle](bool ok) {
                              // The verdict is given on the service thread. That the peer has lost
                              // the connection may not have been heard yet: then it is no verdict.
                              world_.service.run([link, settle, ok] {
                                if (!ok)
                                  link->connection->poll_now();
                                settle(ok ? nullptr : "no proof over the companion queue pair");
                              });
                            }) != 0) {
    settle("the companion queue pair cannot be connected");
    return;
  }
  path.channel->send_proof(std::as_bytes(std::span(ack.nonce)));
}

} // namespace adverb::link
