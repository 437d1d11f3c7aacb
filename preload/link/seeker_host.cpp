// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The connection to a peer's host: made for a search, answered or not, and lost.
#include "link/address.h"
#include "link/identity.h"
#include "link/proof.h"
#include "link/seeker.h"
#include "link/seeker_parts.h"
#include "link/socket_address.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace adverb::link {

using observe::Counter;
using seeking::again_after;
using seeking::bind_due;
using wire::Answer;

namespace {

// How long a host's silence or refusal is taken for all its queue pairs. Short: a process that
// starts adverb later must be found, and it answers before its queue pair numbers are known.
// Silence costs whoever meets it much more than a refusal, so it is met again twice as late each
// time.
constexpr std::chrono::seconds remember_silence{10};
constexpr int silences_max = 5; // that count
constexpr std::chrono::milliseconds remember_refusal{50};
// A broker that has just ended is followed by another, which takes some instants to listen: so one
// refusal says nothing.
constexpr std::chrono::milliseconds refused_apart{250};
// Who accepts connections may be a broker that is slow, or its successor about to take over. Where
// there has been one, or it has said so by its banner, it is waited for.
constexpr std::chrono::seconds answer_due{3};
} // namespace

Seeker::Host& Seeker::host_of(const std::string& name) {
  auto& host = hosts_[name];
  if (!host)
    host = std::make_shared<Host>();
  return *host;
}

// A socket that is about to be connected to the host's broker; -1, and errno.
int Seeker::reach(const Host& host) const {
  sockaddr_storage to;
  const socklen_t bytes = socket_address(host.address.sin6_addr, host.address.sin6_scope_id,
                                         world_.policy().link().port, to);
  const int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&to), bytes) != 0 &&
      errno != EINPROGRESS) {
    const int rc = errno;
    close(fd);
    errno = rc;
    return -1;
  }
  return fd;
}

void Seeker::connect(Host& host, const std::shared_ptr<Search>& first) {
  const auto& settings = world_.policy().link();
  auto link = std::make_shared<Link>();
  link->host = host.name;
  link->first = first;
  link->nonce = random_id(world_.entropy);
  ++first->attempts;
  world_.counters.count(Counter::hellos_sent);
  const int fd = reach(host);
  if (fd < 0) {
    const bool refused = errno == ECONNREFUSED;
    no_link(host, link, Answer::no_such_qp, refused ? Why::refusal : Why::silence,
            "cannot connect");
    return;
  }
  host.under_way = link;
  link->connection = Connection::make(world_, fd);
  link->may_vouch = may_vouch(settings) && is_own(host.address.sin6_addr);
  link->timer = world_.service.after(settings.hello_timeout, [this, link] { silent(link, false); });
  wire::Hello hello{};
  hello.process = process_;
  hello.nonce = link->nonce;
  hello.dgid = id_of(first->qp.ah.grh.dgid);
  hello.dqpn = first->qp.dest_qpn;
  hello.attempt = static_cast<uint32_t>(first->attempts);
  link->connection->send(wire::frame(hello)); // goes out when the connection stands
  link->connection->start([this, link](const wire::Frame& frame, int&) { on_frame(link, frame); },
                          [this, link](const char* why) { lost(link, why); });
  link->connection->when_standing([this, link] { stands(link); });
}

// Where a key is to be shown first, the peer takes nothing else before that.
bool Seeker::may_ask_early(const Link& link) const {
  return world_.policy().link().key.empty() && !link.ready && !link.ended;
}

void Seeker::stands(const std::shared_ptr<Link>& link) {
  link->standing = true;
  if (!may_ask_early(*link))
    return;
  if (!link->first->finished)
    ask(link, link->first);
  for (const auto& search : host_of(link->host).waiting)
    if (!search->finished)
      ask(link, search);
}

// No answer so far: to the connection, or (`patient`) not to the hello either.
void Seeker::silent(const std::shared_ptr<Link>& link, bool patient) {
  assert(world_.service.on_thread());
  if (link->ready || link->ended)
    return;
  in6_addr unused;
  if (!patient && remote_address(link->connection->fd(), unused) == 0) {
    link->timer = world_.service.after(answer_due, [this, link] { silent(link, true); });
    return;
  }
  if (patient && (link->greeted || host_of(link->host).known) && link->waited < bind_due) {
    if (world_.log.every("hello-waits", 5))
      world_.log.warn("{} does not answer a hello; its process may be stopped; adverb waits for "
                      "it, for {} s at most",
                      link->host, bind_due.count());
    link->waited += answer_due;
    link->timer = world_.service.after(answer_due, [this, link] { silent(link, true); });
    return;
  }
  world_.counters.count(Counter::hellos_timeouts);
  if (world_.log.every("hello-timeout", 5))
    world_.log.warn("{} did not answer {}; its processes are treated as stock", link->host,
                    patient ? "a hello" : "within link.hello_timeout");
  link->ended = true;
  link->connection->close();
  no_link(host_of(link->host), link, Answer::no_such_qp, Why::silence, "no answer");
}

// What waits for the connection under way, which was answered.
auto Seeker::take_waiting(Host& host) -> std::deque<std::shared_ptr<Search>> {
  host.under_way = nullptr;
  for (const auto& search : host.waiting)
    search->waits = false;
  return std::exchange(host.waiting, {});
}

// The same when it came to nothing.
auto Seeker::take_waiting(Host& host, const std::shared_ptr<Link>& link)
    -> std::deque<std::shared_ptr<Search>> {
  link->first->tried.erase(link.get());
  for (const auto& search : host.waiting)
    search->tried.erase(link.get());
  return take_waiting(host);
}

// The connection under way came to nothing: the search it was made for is over, and all that wait
// for it, unless another process of that host may be meant.
void Seeker::no_link(Host& host, const std::shared_ptr<Link>& link, Answer answer, Why host_wide,
                     const char* why) {
  const auto waiting = take_waiting(host, link);
  if (host_wide == Why::refusal) {
    const auto now = world_.clock.now();
    if (!std::exchange(host.refused, true))
      host.refused_from = now;
    if (const auto left = host.refused_from + refused_apart - now; left.count() > 0) {
      const auto pause = std::chrono::ceil<std::chrono::milliseconds>(left);
      --link->first->attempts; // the same process is to be asked
      again_later(link->first, pause);
      for (const auto& search : waiting)
        again_later(search, pause);
      return;
    }
    host.stock_until = now + remember_refusal;
  } else if (host_wide == Why::silence)
    host.stock_until =
        world_.clock.now() + remember_silence * (1 << std::min(host.silences++, silences_max));
  const Verdict verdict = answer == Answer::refused || answer == Answer::wrong_version
                              ? Verdict::refused
                              : Verdict::stock;
  if (verdict == Verdict::stock)
    world_.counters.count(Counter::hellos_stock);
  finish(link->first, {verdict, nullptr, 0, why});
  for (const auto& search : waiting) {
    if (host_wide != Why::process)
      finish(search, {verdict, nullptr, 0, why});
    else
      go_on(search);
  }
}

void Seeker::lost(const std::shared_ptr<Link>& link, const char* why) {
  assert(world_.service.on_thread());
  if (link->ended || link->away)
    return;
  world_.service.cancel(link->timer);
  Host& host = host_of(link->host);
  if (!link->ready) {
    link->ended = true;
    // Nobody listens, so nobody there runs adverb, unless a broker has just gone: its successor
    // takes some instants.
    const bool cut = link->connection->cut() && (link->greeted || host.known);
    if ((link->connection->has_sent() || host.known) && again(link, link->first, cut)) {
      for (const auto& search : take_waiting(host, link))
        again_later(search, again_after);
      return;
    }
    no_link(host, link, Answer::no_such_qp, Why::refusal, why);
    return;
  }
  std::erase(host.links, link);
  if (link->connection->cut() && std::ranges::any_of(link->paths, [](const auto& entry) {
        return entry.second.up && !entry.second.channel->down();
      }))
    go_away(link, why);
  else
    give_up(link, why);
  start_over(link);
}

// The link is no more, and what went over it neither.
void Seeker::give_up(const std::shared_ptr<Link>& link, const char* why) {
  link->ended = true;
  link->who->change();
  world_.counters.count(Counter::links_down);
  if (std::erase_if(bound_, [&](const auto& entry) { return entry.second.link.lock() == link; }) !=
      0)
    world_.log.info("link to {} lost: {}", link->host, why);
  else
    world_.log.debug("link to {} ended, nothing was bound: {}", link->host, why);
  for (auto& [key, path] : link->paths) {
    if (path.channel)
      path.channel->close();
    for (const auto& search : path.waiting)
      search->remote_handle = 0;
  }
  link->paths.clear();
}

void Seeker::on_frame(const std::shared_ptr<Link>& link, const wire::Frame& frame) {
  assert(world_.service.on_thread());
  peers_.publish_soon();
  if (frame.type == wire::Type::banner && !link->ready)
    link->greeted = true;
  else if (frame.type == wire::Type::hello_ack && !link->ready)
    on_hello_ack(link, wire::get<wire::HelloAck>(frame));
  else if (frame.type == wire::Type::bind_ack && link->ready)
    on_bind_ack(link, wire::get<wire::BindAck>(frame));
  else if (frame.type == wire::Type::slot && link->ready)
    on_slot(link, wire::get<wire::Slot>(frame));
  else if (frame.type == wire::Type::prove_ack && link->ready)
    on_prove_ack(link, wire::get<wire::ProveAck>(frame));
  else if (frame.type == wire::Type::companion_ack && link->ready)
    on_companion_ack(link, wire::get<wire::CompanionAck>(frame), nullptr);
  else if (frame.type == wire::Type::packet_companion_ack && link->ready)
    on_packet_companion_ack(link, wire::get<wire::PacketCompanionAck>(frame));
  else {
    world_.counters.count(Counter::malformed_messages);
    if (link->who)
      link->who->count(Peer::Number::malformed_messages);
    link->connection->close();
    lost(link, "unexpected message");
  }
}

// Why there is no link with who answers so; null: there is one.
const char* Seeker::judge(const wire::HelloAck& ack, const wire::Id& nonce, const std::string& host,
                          Answer& answer) {
  answer = Answer::refused;
  if (ack.answer == static_cast<uint32_t>(Answer::no_such_qp)) {
    answer = Answer::no_such_qp;
    return "no process there that runs adverb owns the queue pair";
  }
  if (ack.answer == static_cast<uint32_t>(Answer::wrong_version) ||
      !wire::meet(ack.speaks, wire::Versions{})) {
    if (world_.log.every("wire-version", 10))
      world_.log.warn("{} speaks versions {} to {} of adverb's links and this one {} to {}; there "
                      "is no link; run the same adverb on both sides",
                      host, ack.speaks.oldest, ack.speaks.newest, wire::version_oldest,
                      wire::version);
    answer = Answer::wrong_version;
    return "the peer's adverb speaks another version of links";
  }
  if (ack.answer == static_cast<uint32_t>(Answer::no_resources))
    return "the peer has no room for more links";
  if (ack.answer != 0)
    return "not allowed by the peer's policy (link.allow)";
  const auto& key = world_.policy().link().key;
  if (key.empty())
    return ack.mac != wire::Mac{} ? "the peer asks for the key of a link.key_file" : nullptr;
  if (equal(ack.mac, know_key(key, 'o', nonce, ack.nonce)))
    return nullptr;
  world_.counters.count(Counter::auth_failures);
  return "the peer does not know the key of link.key_file";
}

void Seeker::on_hello_ack(const std::shared_ptr<Link>& link, const wire::HelloAck& ack) {
  world_.service.cancel(link->timer);
  Host& host = host_of(link->host);
  Answer answer = Answer::ok;
  if (const char* const why = judge(ack, link->nonce, link->host, answer); why != nullptr) {
    link->ended = true;
    link->connection->close();
    note_refused(link->host, ack);
    no_link(host, link, answer, Why::process, why);
    return;
  }
  if (const auto& key = world_.policy().link().key; !key.empty())
    link->connection->send(wire::frame(wire::Auth{know_key(key, 'i', link->nonce, ack.nonce)}));
  world_.counters.count(Counter::hellos_answered);
  world_.counters.count(Counter::links_up);
  link->ready = true;
  link->peer = ack.process;
  link->owner_nonce = ack.nonce;
  link->vouched = is_vouched_for(world_.policy().link(), link->connection->fd());
  link->ticket = ack.ticket;
  if ((ack.speaks.capabilities & wire::takes_packets) == 0)
    link->no_packets = "knows no reliability in software";
  link->who = meet(link->host, link->peer, link->vouched);
  host.known = true;
  host.refused = false;
  host.stock_until = {};
  host.silences = 0;
  host.links.push_back(link);
  const auto waiting = take_waiting(host);
  go_on(link->first);
  for (const auto& search : waiting)
    go_on(search);
}

} // namespace adverb::link
