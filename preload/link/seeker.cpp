// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/seeker.h"
#include "link/address.h"
#include "link/identity.h"
#include "link/seeker_parts.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace adverb::link {

using observe::Counter;
using seeking::again_after;
using seeking::bind_due;
using wire::Answer;

namespace {

constexpr int doublings_max = 5;
constexpr int losses_max = 4; // of early ends, where nobody has been heard to run adverb
constexpr size_t unbound_max = 1024;
constexpr int attempts_max =
    16; // connections made for one queue pair; a host's devices number alike

// A queue pair that is not connected is a peer that does not answer: the device says so after its
// own time, and shall be asked no later. Programs that have both ends connected some instants late
// find their peer all the same.
uint32_t patience_of(const LocalQp& qp) {
  constexpr std::chrono::milliseconds least{100};
  constexpr std::chrono::milliseconds most{15000};
  const auto own = qp.patience();
  return static_cast<uint32_t>(
      own ? std::clamp(std::chrono::ceil<std::chrono::milliseconds>(*own), least, most).count()
          : most.count());
}

} // namespace

Seeker::Seeker(World& world, Devices& devices, const wire::Id& process, Peers& peers)
    : world_(world), devices_(devices), process_(process), peers_(peers) {}

Seeker::~Seeker() = default;

void Seeker::bind(const LocalQp& qp, std::shared_ptr<Protocol> protocol,
                  std::function<void(Bound)> done) {
  assert(world_.service.on_thread());
  auto search = std::make_shared<Search>();
  search->qp = qp;
  search->protocol = std::move(protocol);
  search->done = std::move(done);
  searches_[qp.handle] = search;
  const auto address = peer_address(world_.policy().link(), qp);
  if (!address) {
    if (world_.log.once("unresolvable"))
      world_.log.warn("the IP address of the peer of queue pair {} on {} cannot be derived; the "
                      "peer is treated as stock; give its address in the policy's link.peers",
                      qp.qpn, qp.device->name);
    finish(search, {Verdict::stock, nullptr, 0, "peer address unknown"});
    return;
  }
  search->host = to_text(*address);
  Host& host = host_of(search->host);
  host.address = *address;
  host.name = search->host;
  search->timer = world_.service.after(bind_due, [this, weak = std::weak_ptr(search)] {
    if (const auto s = weak.lock())
      finish(s, {Verdict::stock, nullptr, 0, "the peer's queue pair was not ready in time"});
  });
  go_on(search);
}

void Seeker::cancel(uint64_t handle) {
  assert(world_.service.on_thread());
  const auto it = searches_.find(handle);
  if (it == searches_.end())
    return;
  const auto search = it->second; // finish() takes it out of the map
  search->done = nullptr;
  finish(search, {});
}

void Seeker::unbind(uint64_t handle) {
  assert(world_.service.on_thread());
  const auto at = bound_.find(handle);
  if (at == bound_.end())
    return;
  if (const auto link = at->second.link.lock(); link && !link->ended) {
    link->unbound.push_back(handle);
    if (link->unbound.size() > unbound_max)
      link->unbound.pop_front();
    if (!link->away)
      link->connection->send(wire::frame(wire::Unbind{handle}));
  }
  bound_.erase(at);
  claims_.erase(handle);
  peers_.publish_soon();
}

void Seeker::finish(const std::shared_ptr<Search>& search, Bound bound) {
  assert(world_.service.on_thread());
  if (search->finished)
    return;
  search->finished = true;
  if (search->timer != 0)
    world_.service.cancel(search->timer);
  const auto it = searches_.find(search->qp.handle);
  if (it != searches_.end() && it->second == search)
    searches_.erase(it);
  if (bound.verdict != Verdict::adverb)
    unbind(search->qp.handle);
  if (bound.verdict != Verdict::adverb || bound.proven)
    claims_.erase(search->qp.handle);
  if (bound.verdict == Verdict::refused) {
    world_.counters.count(Counter::hellos_refused);
    if (world_.log.every("bind-refused", 5))
      world_.log.warn("peer {} refused queue pair {}: {}; its unpinned regions cannot be reached",
                      search->host, search->qp.qpn, bound.reason);
  }
  const auto host = hosts_.find(search->host);
  bound.host_known = host != hosts_.end() && host->second->known;
  world_.log.debug("queue pair {} -> {}: {} {}", search->qp.qpn, search->host,
                   bound.verdict == Verdict::adverb ? "adverb" : "stock", bound.reason);
  if (const auto tell = std::move(search->done))
    tell(std::move(bound));
}

// The next step of a search: ask a link to the host that has not been asked, else connect.
void Seeker::go_on(const std::shared_ptr<Search>& search) {
  assert(world_.service.on_thread());
  if (search->finished || search->remote_handle != 0)
    return; // it has an answer, and waits for its channel perhaps
  if (const auto asked = search->asked.lock(); asked && !asked->ended)
    return;
  Host& host = host_of(search->host);
  for (const auto& link : host.links)
    if (!search->tried.contains(link.get()))
      return ask(link, search);
  if (host.under_way) {
    if (!std::exchange(search->waits, true))
      host.waiting.push_back(search);
    if (may_ask_early(*host.under_way) && host.under_way->standing)
      ask(host.under_way, search);
  } else if (world_.clock.now() < host.stock_until) {
    finish(search, {Verdict::stock, nullptr, 0, "the host did not answer just now"});
  } else if (search->attempts >= attempts_max) {
    if (search->unknown)
      finish(search, {Verdict::stock, nullptr, 0, "no process there owns the queue pair"});
    else
      finish(search, {Verdict::refused, nullptr, 0, "the peer ends the link without an answer"});
  } else {
    connect(host, search);
  }
}

// Whose is the queue pair, and with the same flight whatever else will be asked for if it is
// theirs.
void Seeker::ask(const std::shared_ptr<Link>& link, const std::shared_ptr<Search>& search) {
  wire::Bind bind{};
  bind.sgid = id_of(search->qp.sgid);
  bind.dgid = id_of(search->qp.ah.grh.dgid);
  bind.sqpn = search->qp.qpn;
  bind.dqpn = search->qp.dest_qpn;
  bind.dlid = search->qp.ah.dlid;
  bind.patience = patience_of(search->qp);
  bind.handle = search->qp.handle;
  search->tried.insert(link.get());
  search->asked = link;
  if (!search->protocol) {
    link->connection->send(wire::frame(bind, wire::Type::probe));
    return;
  }
  auto claim = claims_.extract(bind.handle); // of this search
  if (const auto before = bound_.find(bind.handle);
      before != bound_.end() && before->second.link.lock() != link)
    unbind(bind.handle);
  std::erase(link->unbound, bind.handle);
  bound_[bind.handle] = {link, bind, 0, seeking::path_key(search->qp, search->protocol->id()),
                         false};
  link->connection->send(wire::frame(bind));
  want_channel(link, search);
  claims_.erase(bind.handle);
  if (!claim.empty())
    renew(std::move(claim));
  // On this host the kernel's word may do.
  if (!link->may_vouch)
    send_claim(link, bind.handle);
}

void Seeker::again_later(const std::shared_ptr<Search>& search, std::chrono::milliseconds pause) {
  world_.service.after(pause, [this, weak = std::weak_ptr(search)] {
    if (const auto s = weak.lock())
      go_on(s);
  });
}

// Lets a search whose connection ended before it was answered go on a little later; false when that
// has been often enough. Where it was `cut` from who is known to run adverb the network is at
// fault, which may pass, and any verdict would be a guess: bind_due ends it.
bool Seeker::again(const std::shared_ptr<Link>& link, const std::shared_ptr<Search>& search,
                   bool cut) {
  if (link->first == search)
    --search->attempts; // the same process is to be asked
  if (++search->losses >= losses_max && !cut)
    return false;
  again_later(search, again_after * (1 << std::min(search->losses - 1, doublings_max)));
  return true;
}

// Searches that had asked this link and wait for its answer.
void Seeker::start_over(const std::shared_ptr<Link>& link) {
  std::vector<std::shared_ptr<Search>> asked;
  for (const auto& [handle, search] : searches_)
    if (search->tried.contains(link.get()))
      asked.push_back(search);
  for (const auto& search : asked) {
    search->tried.erase(link.get());
    if (search->asked.lock() != link) {
      go_on(search);
      continue;
    }
    search->asked.reset();
    if (!again(link, search, link->connection->cut()))
      finish(search, {Verdict::refused, nullptr, 0, "the peer ends the link without an answer"});
  }
}

void Seeker::on_bind_ack(const std::shared_ptr<Link>& link, const wire::BindAck& ack) {
  const auto it = searches_.find(ack.handle);
  if (it == searches_.end() || it->second->asked.lock() != link)
    return; // whatever a peer says beyond one answer to each question, nobody waits for it
  const auto search = it->second;
  search->asked.reset();
  if (static_cast<Answer>(ack.answer) != Answer::ok) {
    for (auto& [key, path] : link->paths)
      std::erase(path.waiting, search);
    if (auto claim = claims_.extract(ack.handle); !claim.empty())
      renew(std::move(claim)); // for the next one that is asked
  }
  switch (static_cast<Answer>(ack.answer)) {
  case Answer::ok:
    search->remote_handle = ack.remote_handle;
    search->proven = ack.proof == 0 && link->vouched;
    if (!search->protocol) {
      finish(search, {Verdict::adverb, nullptr, ack.remote_handle, {}, true, search->proven});
      return;
    }
    if (const auto bound = bound_.find(ack.handle); bound != bound_.end())
      bound->second.remote_handle = ack.remote_handle;
    if (!search->proven) // else it is kept, as another link may need it should this one be lost
      send_claim(link, ack.handle);
    want_channel(link, search);
    return;
  case Answer::no_such_qp:
    // Another process there may own one of this number on the right device: go_on() connects
    // again, as often as it may.
    search->unknown = true;
    go_on(search);
    break;
  case Answer::no_resources:
    link->who->count(Peer::Number::bound_qps_bound);
    finish(search, {Verdict::refused, nullptr, 0, "it serves no more queue pairs of this process"});
    break;
  default:
    finish(search, {Verdict::stock, nullptr, 0, "the peer's queue pair is connected elsewhere"});
  }
}

} // namespace adverb::link
