// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A link whose connection the network gave up: requests go on over the companion, as they would
// where there is no connection, and another one is made for what is to be said of queue pairs. Only
// when there is none in time, or the peer's process does not know of the link, is it over.
#include "link/address.h"
#include "link/identity.h"
#include "link/proof.h"
#include "link/seeker.h"
#include "link/seeker_parts.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <utility>

namespace adverb::link {

using wire::Answer;

namespace {

// Shorter than the owner keeps what is bound (owner.cpp).
constexpr std::chrono::seconds back_due{8};
constexpr std::chrono::milliseconds answer_due{2000};
constexpr std::chrono::milliseconds pause_first{50}; // doubling
constexpr std::chrono::milliseconds pause_most{500};
// Nobody listens: a broker has just gone, and its successor takes some instants. Else nobody there
// runs adverb any more.
constexpr int refused_max = 2;

} // namespace

void Seeker::go_away(const std::shared_ptr<Link>& link, const char* why) {
  assert(world_.service.on_thread());
  world_.log.info("the connection to {} was lost ({}); requests go on, and it is made anew",
                  link->host, why);
  for (auto at = link->paths.begin(); at != link->paths.end();) {
    Link::Path& path = at->second;
    if (path.up) {
      ++at;
      continue;
    }
    if (path.channel)
      path.channel->close();
    for (const auto& search : path.waiting)
      search->remote_handle = 0;
    at = link->paths.erase(at);
  }
  link->away = std::make_unique<Away>();
  link->away->until = world_.clock.now() + back_due;
  come_back(link);
}

auto Seeker::bound_over(const std::shared_ptr<Link>& link) const -> std::vector<const Asked*> {
  std::vector<const Asked*> bound;
  for (const auto& [handle, asked] : bound_)
    if (asked.link.lock() == link)
      bound.push_back(&asked);
  return bound;
}

// The broker there finds the process by a queue pair of its, any that is bound over the link.
void Seeker::come_back(const std::shared_ptr<Link>& link) {
  assert(world_.service.on_thread());
  Away& away = *link->away;
  const auto bound = bound_over(link);
  if (bound.empty())
    return stay_away(link, "nothing is bound over it");
  const Asked& asked = *bound[away.tries % bound.size()];
  const int fd = reach(host_of(link->host));
  if (fd < 0)
    return try_later(link, errno == ECONNREFUSED);
  away.connection = Connection::make(world_, fd);
  away.nonce = random_id(world_.entropy);
  wire::Hello hello{};
  hello.process = process_;
  hello.nonce = away.nonce;
  hello.dgid = asked.bind.dgid;
  hello.dqpn = asked.bind.dqpn;
  ++away.tries;
  hello.attempt = static_cast<uint32_t>(away.tries + away.tries / bound.size());
  away.connection->send(wire::frame(hello));
  // The connection, or the timer, keeps the link meanwhile.
  const auto* const mine = away.connection.get();
  away.connection->start(
      [this, link, mine](const wire::Frame& frame, int&) {
        if (link->connection.get() == mine)
          on_frame(link, frame);
        else if (link->away && link->away->connection.get() == mine)
          on_frame_away(link, frame);
      },
      [this, link, mine](const char* why) {
        if (link->connection.get() == mine)
          lost(link, why);
        else if (link->away && link->away->connection.get() == mine)
          try_later(link, !link->away->connection->has_sent() && !link->away->connection->cut());
      });
  away.timer = world_.service.after(answer_due, [this, link] {
    if (!link->away)
      return;
    link->away->timer = 0;
    link->away->connection->close();
    try_later(link, false);
  });
}

void Seeker::on_frame_away(const std::shared_ptr<Link>& link, const wire::Frame& frame) {
  Away& away = *link->away;
  if (frame.type == wire::Type::resume_ack) {
    if (wire::get<wire::ResumeAck>(frame).answer != 0)
      return stay_away(link, "the peer has ended it");
    return is_back(link);
  }
  if (frame.type == wire::Type::banner)
    return;
  if (frame.type != wire::Type::hello_ack)
    return stay_away(link, "unexpected message");
  const auto ack = wire::get<wire::HelloAck>(frame);
  Answer answer = Answer::ok;
  const char* const why = judge(ack, away.nonce, link->host, answer);
  // That queue pair has gone there, or another process has one of the same number: the next one may
  // be found.
  if (answer == Answer::no_such_qp || (why == nullptr && ack.process != link->peer)) {
    away.connection->close();
    if (++away.unknown >= 2 * bound_over(link).size())
      return stay_away(link, "the peer's process is gone");
    away.pause = {};
    return try_later(link, false);
  }
  if (why != nullptr)
    return stay_away(link, why);
  if (const auto& key = world_.policy().link().key; !key.empty())
    away.connection->send(wire::frame(wire::Auth{know_key(key, 'i', away.nonce, ack.nonce)}));
  away.connection->send(wire::frame(wire::Resume{link->ticket}));
  away.owner_nonce = ack.nonce;
}

// `refused`: nobody listens.
void Seeker::try_later(const std::shared_ptr<Link>& link, bool refused) {
  Away& away = *link->away;
  if (away.timer != 0)
    world_.service.cancel(std::exchange(away.timer, 0));
  away.refused = refused ? away.refused + 1 : 0;
  if (away.refused >= refused_max)
    return stay_away(link, "the peer's process is gone");
  away.pause = std::clamp(2 * away.pause, pause_first, pause_most);
  if (world_.clock.now() + away.pause >= away.until)
    return stay_away(link, "no connection could be made for it in time");
  away.timer = world_.service.after(away.pause, [this, link] {
    if (!link->away)
      return;
    link->away->timer = 0;
    come_back(link);
  });
}

void Seeker::stay_away(const std::shared_ptr<Link>& link, const char* why) {
  const auto away = std::move(link->away);
  if (away->timer != 0)
    world_.service.cancel(away->timer);
  if (away->connection)
    away->connection->close();
  give_up(link, why);
}

void Seeker::is_back(const std::shared_ptr<Link>& link) {
  const auto away = std::move(link->away);
  world_.service.cancel(away->timer);
  link->connection = away->connection;
  link->nonce = away->nonce;
  link->owner_nonce = away->owner_nonce;
  // Another may have the port by now.
  link->vouched = is_vouched_for(world_.policy().link(), link->connection->fd());
  world_.counters.count(observe::Counter::links_resumed);
  world_.log.info("there is a connection to {} again", link->host);
  // What was said last may not have been heard.
  for (const uint64_t handle : link->unbound)
    link->connection->send(wire::frame(wire::Unbind{handle}));
  host_of(link->host).links.push_back(link);
  try_anew(link);
}

} // namespace adverb::link
