// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/owner.h"
#include "link/address.h"
#include "link/companion.h"
#include "link/hmac.h"
#include "link/identity.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <unistd.h>

namespace adverb::link {

using observe::Counter;
using wire::Answer;

namespace {

// How long a bind waits for its target's RTR where its initiator's device would try for longer.
constexpr std::chrono::milliseconds rtr_due{10000};
constexpr std::chrono::seconds auth_due{2};
constexpr size_t links_max = 4096;
constexpr size_t waiting_max = 65536;

} // namespace

struct Owner::Link {
  std::shared_ptr<Connection> connection;
  wire::Id peer_nonce{};
  wire::Id nonce{};
  bool trusted = false;
  uint64_t timer = 0; // until trusted
  std::vector<std::shared_ptr<Companion>> channels;
};

void Owner::accept(int fd, const wire::Hello& hello) {
  assert(world_.service.on_thread());
  const auto& settings = world_.policy().link();
  auto link = std::make_shared<Link>();
  link->connection = Connection::make(world_, fd);
  link->peer_nonce = hello.nonce;
  link->nonce = random_id(world_.entropy);
  wire::HelloAck ack{};
  ack.process = process_;
  ack.nonce = link->nonce;
  if (links_.size() >= links_max) {
    ack.answer = static_cast<uint32_t>(Answer::no_resources);
  } else if (settings.key.empty()) {
    in6_addr from{};
    link->trusted =
        same_host_and_uid(fd) || (remote_address(fd, from) == 0 && settings.allowed(from));
    if (!link->trusted)
      ack.answer = static_cast<uint32_t>(Answer::refused);
  } else {
    ack.mac = prove(world_.policy().link().key, 'o', hello.nonce, link->nonce);
  }
  link->connection->send(wire::frame(ack));
  if (ack.answer != 0) {
    world_.counters.count(Counter::hellos_refused);
    if (world_.log.every("hello-refused", 5))
      world_.log.warn("a hello was refused: {}",
                      links_.size() >= links_max
                          ? "too many links"
                          : "its sender is neither this user on this host nor in the policy's "
                            "link.allow");
    link->connection->close();
    return;
  }
  links_.insert(link);
  const std::weak_ptr weak(link);
  link->connection->start(
      [this, weak](const wire::Frame& frame, int&) {
        if (const auto l = weak.lock())
          on_frame(l, frame);
      },
      [this, weak](const char* why) {
        if (const auto l = weak.lock())
          end(l, why);
      });
  if (!link->trusted)
    link->timer = world_.service.after(auth_due, [this, weak] {
      const auto l = weak.lock();
      if (l && !l->trusted) {
        world_.counters.count(Counter::auth_failures);
        end(l, "no proof of the key in time");
      }
    });
}

void Owner::end(const std::shared_ptr<Link>& link, const char* why) {
  assert(world_.service.on_thread());
  world_.log.debug("a peer's link ended: {}", why);
  for (const auto& channel : link->channels)
    channel->close();
  link->channels.clear();
  link->connection->close();
  if (link->timer != 0)
    world_.service.cancel(link->timer);
  links_.erase(link);
}

void Owner::on_frame(const std::shared_ptr<Link>& link, const wire::Frame& frame) {
  assert(world_.service.on_thread());
  if (frame.type == wire::Type::auth && !link->trusted) {
    link->trusted = equal(wire::get<wire::Auth>(frame).mac,
                          prove(world_.policy().link().key, 'i', link->peer_nonce, link->nonce));
    if (!link->trusted) {
      world_.counters.count(Counter::auth_failures);
      world_.log.warn("a peer does not know the key of the policy's link.key_file");
      end(link, "wrong key");
    } else {
      world_.service.cancel(link->timer);
    }
    return;
  }
  if (!link->trusted) {
    world_.counters.count(Counter::auth_failures);
    end(link, "not authenticated");
  } else if (frame.type == wire::Type::bind) {
    on_bind(link, wire::get<wire::Bind>(frame));
  } else if (frame.type == wire::Type::companion) {
    on_companion(link, wire::get<wire::Companion>(frame));
  } else {
    world_.counters.count(Counter::malformed_messages);
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

void Owner::on_bind(const std::shared_ptr<Link>& link, const wire::Bind& bind) {
  LocalQp qp;
  Answer answer = directory_.match(bind, qp);
  if (answer != Answer::ok && !is_here(bind))
    answer = Answer::no_such_qp;
  // A target connected to somebody else may be about to be reset and connected anew, as much as one
  // not connected yet: its peer asks because it has been told this number.
  const bool waits = answer == Answer::not_ready || answer == Answer::mismatch;
  if (waits && waiting_.size() < waiting_max) {
    const auto due =
        bind.patience == 0 ? rtr_due : std::min(rtr_due, std::chrono::milliseconds(bind.patience));
    const uint64_t timer = world_.service.after(due, [this, handle = bind.handle, answer] {
      for (auto it = waiting_.begin(); it != waiting_.end(); ++it)
        if (it->bind.handle == handle) {
          if (const auto l = it->link.lock())
            l->connection->send(
                wire::frame(wire::BindAck{handle, 0, static_cast<uint32_t>(answer), 0}));
          waiting_.erase(it);
          return;
        }
    });
    waiting_.push_back({link, bind, timer});
    return;
  }
  link->connection->send(
      wire::frame(wire::BindAck{bind.handle, qp.handle, static_cast<uint32_t>(answer), 0}));
}

void Owner::retry_waiting() {
  assert(world_.service.on_thread());
  auto again = std::move(waiting_);
  waiting_.clear();
  for (auto& w : again) {
    LocalQp qp;
    if (directory_.match(w.bind, qp) != Answer::ok) {
      waiting_.push_back(std::move(w));
      continue;
    }
    world_.service.cancel(w.timer);
    if (const auto l = w.link.lock())
      l->connection->send(wire::frame(wire::BindAck{w.bind.handle, qp.handle, 0, 0}));
  }
}

void Owner::on_companion(const std::shared_ptr<Link>& link, const wire::Companion& request) {
  wire::CompanionAck ack{};
  ack.handle = request.handle;
  ack.nonce = random_id(world_.entropy);
  ack.protocol = request.protocol;
  ack.answer = static_cast<uint32_t>(make_companion(link, request, ack));
  link->connection->send(wire::frame(ack));
}

Answer Owner::make_companion(const std::shared_ptr<Link>& link, const wire::Companion& request,
                             wire::CompanionAck& ack) {
  LocalQp qp;
  // Destroyed since its bind: no fault of the path, which other queue pairs may take.
  if (!directory_.find(request.remote_handle, qp))
    return Answer::no_such_qp;
  const auto protocol = protocols_.find(request.protocol);
  if (!protocol) {
    if (world_.log.every("protocol", 10))
      world_.log.warn("a peer asked for a channel of protocol {}, which is not known here; it "
                      "runs a newer adverb",
                      request.protocol);
    return Answer::no_such_protocol;
  }
  std::shared_ptr<Companion> channel;
  if (request.credits >= 1 && request.message_max > 256)
    if (const auto device = devices_.get(qp.device))
      channel = Companion::create(world_, device, Channel::Role::server, protocol, request.credits);
  const auto as_bytes = [](const wire::Id& id) {
    const auto bytes = std::as_bytes(std::span(id));
    return std::vector(bytes.begin(), bytes.end());
  };
  if (!channel ||
      channel->connect(qp.ah, qp.mtu,
                       {request.qpn, request.psn, request.credits, request.message_max,
                        request.protocol_version},
                       as_bytes(ack.nonce),
                       [weak = std::weak_ptr(channel), nonce = as_bytes(request.nonce)](bool ok) {
                         if (const auto c = weak.lock(); c && ok)
                           c->send_proof(nonce);
                       }) != 0) {
    if (world_.log.every("companion", 10))
      world_.log.warn(
          "no companion queue pair can be made for a peer; it will treat this process's "
          "regions as stock");
    return Answer::no_resources;
  }
  std::erase_if(link->channels, [](const auto& c) { return c->down(); });
  link->channels.push_back(channel);
  ack.qpn = channel->qpn();
  ack.psn = channel->psn();
  ack.credits = static_cast<uint16_t>(channel->credits());
  ack.message_max = static_cast<uint32_t>(channel->message_max());
  ack.protocol_version = protocol->version();
  return Answer::ok;
}

} // namespace adverb::link
