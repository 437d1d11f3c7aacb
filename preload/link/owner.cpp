// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/owner.h"
#include "link/address.h"
#include "link/bounds.h"
#include "link/companions.h"
#include "link/identity.h"
#include "link/owner_parts.h"
#include "link/proof.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <unistd.h>
#include <utility>
#include <vector>

namespace adverb::link {

using observe::Counter;
using Number = Peer::Number;
using wire::Answer;

namespace {

// How long a bind waits for its target's RTR where its initiator's device would try for longer.
constexpr std::chrono::milliseconds rtr_due{10000};
constexpr std::chrono::seconds auth_due{2};
// A link over which no queue pair is bound is of no use to its peer, who makes another one when it
// binds the next.
constexpr std::chrono::seconds idle_due{5};
// What is bound over a link whose connection was lost stays so long: its peer comes back sooner
// (seeker_away.cpp).
constexpr std::chrono::seconds away_due{10};
constexpr size_t binds_looked_at = 256; // after so many they are counted

} // namespace

// Who may bind at all, and prove what it has bound: everybody, but where the policy names addresses
// of other hosts.
bool Owner::admits(int fd) const {
  const auto& settings = world_.policy().link();
  in6_addr from{};
  return settings.allow.empty() ||
         (remote_address(fd, from) == 0 && (is_own(from) || settings.allowed(from)));
}

void Owner::accept(int fd, const wire::Hello& hello) {
  assert(world_.service.on_thread());
  const auto& settings = world_.policy().link();
  auto link = std::make_shared<Link>();
  link->connection = Connection::make(world_, fd);
  link->peer = hello.process;
  link->peer_nonce = hello.nonce;
  link->nonce = random_id(world_.entropy);
  link->ticket = random_id(world_.entropy);
  wire::HelloAck ack{};
  ack.process = process_;
  ack.nonce = link->nonce;
  const bool speak_alike = wire::meet(hello.speaks, wire::Versions{});
  if (!make_room_for_link()) {
    ack.answer = static_cast<uint32_t>(Answer::no_resources);
  } else if (!speak_alike) {
    ack.answer = static_cast<uint32_t>(Answer::wrong_version);
  } else if (settings.key.empty()) {
    // Not by `fd`, which the connection has moved to another number.
    link->vouched = is_vouched_for(settings, link->connection->fd());
    link->trusted = link->vouched || admits(link->connection->fd());
    if (!link->trusted)
      ack.answer = static_cast<uint32_t>(Answer::refused);
  } else {
    ack.mac = know_key(settings.key, 'o', hello.nonce, link->nonce);
  }
  if (ack.answer == 0)
    ack.ticket = link->ticket;
  meet(link);
  link->connection->send(wire::frame(ack));
  if (ack.answer != 0) {
    world_.counters.count(Counter::hellos_refused);
    link->who->count(ack.answer == static_cast<uint32_t>(Answer::no_resources)
                         ? Number::bound_links
                         : Number::hellos_refused);
    if (!speak_alike && world_.log.every("wire-version", 10))
      world_.log.warn("a peer speaks versions {} to {} of adverb's links and this one {} to {}; "
                      "there is no link; run the same adverb on both sides",
                      hello.speaks.oldest, hello.speaks.newest, wire::version_oldest,
                      wire::version);
    else if (speak_alike && world_.log.every("hello-refused", 5))
      world_.log.warn("a hello was refused: {}",
                      ack.answer == static_cast<uint32_t>(Answer::no_resources)
                          ? "too many links"
                          : "its sender is on a host that the policy's link.allow does not name");
    link->connection->close();
    return;
  }
  links_.insert(link);
  if (!link->vouched)
    strangers_.push_back(link);
  by_ticket_[link->ticket] = link;
  const std::weak_ptr weak(link);
  link->connection->read_no_faster_than_taken(
      [who = link->who] { who->count(Number::bound_answers); });
  link->connection->start(
      [this, weak](const wire::Frame& frame, int&) {
        if (const auto l = weak.lock())
          on_frame(l, frame);
      },
      [this, weak](const char* why) {
        if (const auto l = weak.lock())
          lost(l, why);
      });
  if (!link->trusted)
    link->timer = world_.service.after(auth_due, [this, weak] {
      const auto l = weak.lock();
      if (l && !l->trusted) {
        world_.counters.count(Counter::auth_failures);
        l->who->count(Number::auth_failures);
        end(l, "no proof of the key in time");
      }
    });
  else
    look_if_idle(link);
}

void Owner::look_if_idle(const std::shared_ptr<Link>& link) {
  const bool idle = link->bound.empty() && link->waits.empty();
  if (link->away || idle == (link->timer != 0))
    return;
  if (!idle) {
    world_.service.cancel(std::exchange(link->timer, 0));
    return;
  }
  link->timer = world_.service.after(idle_due, [this, weak = std::weak_ptr(link)] {
    const auto l = weak.lock();
    if (l && l->bound.empty() && l->waits.empty())
      end(l, "none of its queue pairs is bound");
  });
}

// Who asked for them asks anew, if it still wants them.
void Owner::forget_waiting(const std::shared_ptr<Link>& link) {
  while (!link->waits.empty())
    wait_no_more(*link->waits.begin());
  std::erase_if(link->bound, [](const auto& entry) { return entry.second.handle == 0; });
}

// A connection that the network gave up is no reason to end what goes over the companion: whoever
// closes one, or whose process ends, is heard to.
void Owner::lost(const std::shared_ptr<Link>& link, const char* why) {
  forget_waiting(link);
  note(link);
  if (link->connection->malformed())
    link->who->count(Number::malformed_messages);
  const bool serves =
      std::ranges::any_of(link->channels, [](const auto& c) { return !c.end->down(); });
  // One that has just opened may not have been heard of yet.
  const bool opened = link->opened || std::ranges::any_of(link->channels, [](const auto& c) {
                        return c.end->is_open();
                      });
  if (!link->connection->cut() || (is_unproven(*link) && !opened) || link->bound.empty() || !serves)
    return end(link, why);
  world_.log.info("a peer's connection was lost; its queue pairs stay bound for {} s",
                  away_due.count());
  link->connection->close();
  if (link->timer != 0)
    world_.service.cancel(link->timer);
  link->away = true;
  link->timer = world_.service.after(away_due, [this, weak = std::weak_ptr(link)] {
    if (const auto l = weak.lock())
      end(l, "its connection was lost, and the peer has not come back");
  });
  away_.push_back(link);
  std::erase_if(away_, [](const auto& weak) {
    const auto l = weak.lock();
    return !l || !l->away;
  });
  if (away_.size() > bounds::away)
    end(away_.front().lock(), "too many whose connections were lost");
}

// The connection of `link` stands for that of the ticket. That one need not be known to be lost
// here: a connection may end at one end alone.
Answer Owner::resume(const std::shared_ptr<Link>& link, const wire::Id& ticket) {
  const auto at = by_ticket_.find(ticket);
  const auto former = at == by_ticket_.end() ? nullptr : at->second.lock();
  if (!former || former == link || !former->trusted || !link->bound.empty() || !link->waits.empty())
    return Answer::refused;
  forget_waiting(former);
  while (!former->claims.empty()) // it asks for others
    give_up(former, former->claims.begin()->first);
  link->bound = std::exchange(former->bound, {});
  link->channels = std::exchange(former->channels, {});
  link->opened = link->opened || former->opened;
  companions_.move(former, link);
  link->proven = link->proven || former->proven;
  former->away = false;
  end(former, "another connection stands for it");
  // The ticket stays that of the link: who does not hear the answer, as this connection is lost as
  // well, asks by it once more.
  by_ticket_.erase(link->ticket);
  link->ticket = ticket;
  by_ticket_[ticket] = link;
  look_if_idle(link);
  world_.counters.count(Counter::links_resumed);
  return Answer::ok;
}

void Owner::end(const std::shared_ptr<Link>& link, const char* why) {
  assert(world_.service.on_thread());
  world_.log.debug("a peer's link ended: {}", why);
  for (const auto& channel : link->channels)
    channel.end->close();
  link->channels.clear();
  forget_waiting(link);
  while (!link->claims.empty())
    give_up(link, link->claims.begin()->first);
  link->connection->close();
  link->who->change();
  if (link->timer != 0)
    world_.service.cancel(std::exchange(link->timer, 0));
  link->away = false;
  by_ticket_.erase(link->ticket);
  links_.erase(link);
}

void Owner::on_frame(const std::shared_ptr<Link>& link, const wire::Frame& frame) {
  assert(world_.service.on_thread());
  note(link);
  if (frame.type == wire::Type::auth && !link->trusted) {
    link->trusted = equal(wire::get<wire::Auth>(frame).mac,
                          know_key(world_.policy().link().key, 'i', link->peer_nonce, link->nonce));
    if (!link->trusted) {
      world_.counters.count(Counter::auth_failures);
      link->who->count(Number::auth_failures);
      if (world_.log.every("wrong-key", 10))
        world_.log.warn("a peer does not know the key of the policy's link.key_file; give both "
                        "sides the same key");
      end(link, "wrong key");
    } else {
      link->who->admit(observe::PeerLevel::key);
      world_.service.cancel(std::exchange(link->timer, 0));
      look_if_idle(link);
    }
    return;
  }
  if (!link->trusted) {
    world_.counters.count(Counter::auth_failures);
    link->who->count(Number::auth_failures);
    end(link, "not authenticated");
    return;
  }
  heard(link, 1);
  if (frame.type == wire::Type::bind || frame.type == wire::Type::probe) {
    on_bind(link, wire::get<wire::Bind>(frame), frame.type == wire::Type::probe);
  } else if (frame.type == wire::Type::unbind) {
    unbind(link, wire::get<wire::Unbind>(frame).handle);
  } else if (frame.type == wire::Type::resume) {
    const auto answer = resume(link, wire::get<wire::Resume>(frame).ticket);
    if (answer != Answer::ok)
      heard(link, bounds::frames_for_vain);
    link->connection->send(wire::frame(wire::ResumeAck{static_cast<uint32_t>(answer), 0}));
  } else if (frame.type == wire::Type::claim) {
    on_claim(link, wire::get<wire::Claim>(frame));
  } else if (frame.type == wire::Type::prove) {
    on_prove(link, wire::get<wire::Prove>(frame));
  } else if (frame.type == wire::Type::companion) {
    on_companion(link, wire::get<wire::Companion>(frame));
  } else if (frame.type == wire::Type::packet_companion) {
    on_packet_companion(link, wire::get<wire::PacketCompanion>(frame));
  } else {
    world_.counters.count(Counter::malformed_messages);
    link->who->count(Number::malformed_messages);
    end(link, "unexpected message");
  }
}

// Whether a queue pair that is asked for can become the one that is meant. Devices number theirs
// alike: one of the same number on another device must not keep the peer waiting.
bool Owner::is_here(const wire::Bind& bind) const {
  const auto devices = directory_.devices(bind.dqpn);
  if (bind.dgid == wire::Id{}) // a LID
    return !devices.empty();
  ibv_gid gid{};
  memcpy(gid.raw, bind.dgid.data(), sizeof gid.raw);
  return std::ranges::any_of(devices, [&](ibv_device* device) {
    const auto ours = devices_.get(device);
    return ours && ours->has_gid(gid);
  });
}

void Owner::on_bind(const std::shared_ptr<Link>& link, const wire::Bind& bind, bool probe) {
  const bool known = link->bound.contains(bind.handle);
  if ((!known && link->bound.size() >= bounds::qps_of_link) ||
      link->waits.size() >= bounds::qps_of_link) {
    link->who->count(link->waits.size() >= bounds::qps_of_link ? Number::bound_waiting_binds
                                                               : Number::bound_qps_bound);
    if (world_.log.every("bound", 10))
      world_.log.warn("a peer process has {} queue pairs bound here, or waiting for it, and asks "
                      "for more; refused",
                      bounds::qps_of_link);
    link->connection->send(
        wire::frame(wire::BindAck{bind.handle, 0, static_cast<uint32_t>(Answer::no_resources), 0}));
    return;
  }
  if (!known && ++binds_ % binds_looked_at == 0) {
    look_at_binds();
    if (!links_.contains(link))
      return;
  }
  if (!probe) // or it asks anew, as its channel was lost
    wait_no_more(link->bound[bind.handle].wait);
  LocalQp qp;
  Answer result = directory_.match(bind, qp);
  if (result != Answer::ok && !is_here(bind))
    result = Answer::no_such_qp;
  if (result == Answer::no_such_qp)
    heard(link, bounds::frames_for_vain);
  // A target connected to somebody else may be about to be reset and connected anew, as much as one
  // not connected yet: its peer asks because it has been told this number.
  const bool waits = result == Answer::not_ready || result == Answer::mismatch;
  if (waits && make_room_to_wait(link)) {
    wait_for(link, bind, probe, result);
  } else {
    if (waits)
      link->who->count(Number::bound_waiting_binds);
    answer(link, bind, probe, result, qp);
  }
  look_if_idle(link);
}

void Owner::wait_for(const std::shared_ptr<Link>& link, const wire::Bind& bind, bool probe,
                     Answer so_far) {
  const auto due =
      bind.patience == 0 ? rtr_due : std::min(rtr_due, std::chrono::milliseconds(bind.patience));
  const uint64_t wait = waiting_.next();
  const uint64_t timer = world_.service.after(due, [this, wait, so_far] {
    const WaitingBinds::Bind over = *waiting_.find(wait); // its removal cancels this
    wait_no_more(wait);
    const auto link = over.link.lock();
    answer(link, over.bind, over.probe, so_far, {});
    look_if_idle(link);
  });
  waiting_.add({link, bind, probe, timer});
  link->waits.insert(wait);
  if (!probe)
    link->bound[bind.handle].wait = wait;
}

void Owner::wait_no_more(uint64_t wait) {
  const auto over = waiting_.remove(wait);
  if (!over)
    return;
  world_.service.cancel(over->timer);
  if (const auto link = over->link.lock())
    link->waits.erase(wait);
}

// What comes of a bind or probe; `qp` is whom it means, where that is somebody. The peer may use a
// bind the moment it is told of it.
void Owner::answer(const std::shared_ptr<Link>& link, const wire::Bind& bind, bool probe,
                   Answer answer, const LocalQp& qp) {
  note(link);
  std::optional<wire::Claim> claim;
  if (!probe) {
    if (link->bound[bind.handle].handle != qp.handle)
      part(link, bind.handle);
    give_up(link, bind.handle);
    claim = link->bound[bind.handle].claim;
  }
  if (!probe && answer != Answer::ok) {
    link->bound.erase(bind.handle);
  } else if (!probe) {
    link->bound[bind.handle] = {qp.handle, qp.device, 0, bind, {}};
    if (link->vouched)
      holders_.vouch(qp.handle, link, [this](uint64_t handle) { return exists(handle); });
    for (const auto& channel : link->channels)
      if (channel.device == qp.device)
        channel.end->bind(qp.handle, bind.handle, link->vouched);
  }
  link->connection->send(wire::frame(wire::BindAck{
      bind.handle, qp.handle, static_cast<uint32_t>(answer), link->vouched ? 0U : 1U}));
  if (claim)
    on_claim(link, *claim);
}

void Owner::unbind(const std::shared_ptr<Link>& link, uint64_t peers) {
  const auto at = link->bound.find(peers);
  if (at == link->bound.end())
    return heard(link, bounds::frames_for_vain);
  wait_no_more(at->second.wait);
  give_up(link, peers);
  part(link, peers);
  link->bound.erase(peers);
  look_if_idle(link);
}

// Whoever it is bound to serves it no more.
void Owner::part(const std::shared_ptr<Link>& link, uint64_t peers) {
  const owning::Bound& was = link->bound[peers];
  for (const auto& channel : link->channels)
    if (was.handle != 0 && channel.device == was.device)
      channel.end->unbind(was.handle, peers);
}

void Owner::retry_waiting(uint32_t qpn) {
  assert(world_.service.on_thread());
  for (const uint64_t wait : waiting_.of_qp(qpn)) {
    const WaitingBinds::Bind w = *waiting_.find(wait);
    LocalQp qp;
    if (directory_.match(w.bind, qp) != Answer::ok)
      continue;
    wait_no_more(wait);
    const auto link = w.link.lock();
    answer(link, w.bind, w.probe, Answer::ok, qp);
    look_if_idle(link);
  }
}

void Owner::on_companion(const std::shared_ptr<Link>& link, const wire::Companion& request) {
  wire::CompanionAck ack{};
  ack.handle = request.handle;
  ack.nonce = random_id(world_.entropy);
  ack.protocol = request.protocol;
  ack.answer = static_cast<uint32_t>(make_companion(link, request, nullptr, ack));
  link->connection->send(wire::frame(ack));
}

void Owner::on_packet_companion(const std::shared_ptr<Link>& link,
                                const wire::PacketCompanion& request) {
  wire::PacketCompanionAck ack{};
  ack.companion.handle = request.companion.handle;
  ack.companion.nonce = random_id(world_.entropy);
  ack.companion.protocol = request.companion.protocol;
  const Answer answer = make_companion(link, request.companion, &request.address, ack.companion);
  ack.companion.answer = static_cast<uint32_t>(answer);
  if (answer == Answer::ok)
    if (const auto address = link->channels.back().end->packet_address())
      ack.address = *address;
  link->connection->send(wire::frame(ack));
}

Answer Owner::make_companion(const std::shared_ptr<Link>& link, const wire::Companion& request,
                             const wire::PacketAddress* packets, wire::CompanionAck& ack) {
  LocalQp qp;
  const auto bound = link->bound.find(request.handle);
  if (bound != link->bound.end() && bound->second.wait != 0)
    return Answer::not_ready;
  // Destroyed since its bind: no fault of the path, which other queue pairs may take.
  if (bound == link->bound.end() ||
      (request.remote_handle != 0 && request.remote_handle != bound->second.handle) ||
      !directory_.find(bound->second.handle, qp))
    return Answer::no_such_qp;
  const auto protocol = protocols_.find(request.protocol);
  if (!protocol) {
    if (world_.log.every("protocol", 10))
      world_.log.warn("a peer asked for a channel of protocol {}, which is not known here; the "
                      "peer runs a newer adverb",
                      request.protocol);
    return Answer::no_such_protocol;
  }
  std::erase_if(link->channels, [](const auto& c) { return c.end->down(); });
  if (link->channels.size() >= bounds::channels_of_link) {
    link->who->count(Number::bound_channels);
    if (world_.log.every("channels", 10))
      world_.log.warn("a peer process has {} channels here and asks for more; refused",
                      bounds::channels_of_link);
    return Answer::no_resources;
  }
  if (const Answer room = make_room_for_companion(link, bound->second.handle); room != Answer::ok)
    return room;
  const auto device = devices_.get(qp.device);
  std::shared_ptr<Companion> channel;
  errno = 0;
  if (device && request.credits >= 1 && request.message_max > 256)
    channel = create_companion(world_, device, Channel::Role::server, protocol, request.credits,
                               packets != nullptr ? &qp : nullptr);
  // What others give back comes when their queue pairs are gone, which takes a moment.
  if (!channel && errno == ENOMEM && packets == nullptr) {
    look_who_stands();
    bool any = false;
    companions_.for_each([&any](const auto& charge) { any |= charge.qp == 0 || charge.ends; });
    if (any)
      return give_companion_up_for(link) ? Answer::not_ready : refuse_companion(link);
  }
  if (channel) {
    channel->set_party(link->party);
    channel->set_peer(link->who);
  }
  for (const auto& [peers, mine] : link->bound)
    if (channel && mine.device == qp.device)
      channel->bind(mine.handle, peers, link->vouched);
  const auto as_bytes = [](const wire::Id& id) {
    const auto bytes = std::as_bytes(std::span(id));
    return std::vector(bytes.begin(), bytes.end());
  };
  if (!channel ||
      channel->connect(qp,
                       {request.qpn, request.psn, request.credits, request.message_max,
                        request.protocol_version, request.timeout,
                        packets != nullptr ? std::optional(*packets) : std::nullopt},
                       as_bytes(ack.nonce),
                       [this, weak = std::weak_ptr(channel), nonce = as_bytes(request.nonce),
                        number = companions_.next()](bool ok) {
                         if (const auto c = weak.lock(); c && ok)
                           c->send_proof(nonce);
                         world_.service.run([this, number, ok] { is_open(number, ok); });
                       }) != 0) {
    if (world_.log.every("companion", 10))
      world_.log.warn(
          "no companion queue pair can be made for a peer; it will treat this process's "
          "regions as stock");
    return Answer::no_resources;
  }
  ack.qpn = channel->qpn();
  ack.psn = channel->psn();
  ack.credits = static_cast<uint16_t>(channel->credits());
  ack.message_max = static_cast<uint32_t>(channel->message_max());
  ack.protocol_version = protocol->version();
  link->channels.push_back({qp.device, channel, request, ack, qp.ah});
  charge(link, channel, needs_no_proof(*link) ? bound->second.handle : 0);
  return Answer::ok;
}

} // namespace adverb::link
