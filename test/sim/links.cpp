// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "links.h"
#include "handlers.h"
#include "transfer/messages.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace sim {

namespace link = adverb::link;

// As the real owner's, but for a shorter time.
constexpr std::chrono::milliseconds look_again{5};
constexpr int looks_max = 4;

// What a forged request is known by: no honest one has the number.
constexpr uint64_t forged = 0xF0F0'F0F0'F0F0'F0F0;

Channel::Channel(link::Progress& progress, Role role, uint32_t fibre, uint32_t credits,
                 uint32_t reported, size_t message_max, uint8_t version)
    : link::Channel(progress, role), fibre(fibre), reported_(reported) {
  credits_ = credits;
  message_max_ = message_max;
  version_ = version;
  for (uint32_t i = 0; i <= credits; ++i)
    free_.push_back(memory_.emplace_back(new std::byte[message_max]).get());
}

std::byte* Channel::acquire() noexcept {
  if (down_ || free_.empty()) {
    starved_ = true;
    return nullptr;
  }
  std::byte* message = free_.back();
  free_.pop_back();
  return message;
}

void Channel::send(std::byte* message, size_t bytes) noexcept {
  const bool note =
      deaf && role() == Role::client && message[0] == std::byte{adverb::transfer::notice_kind};
  if (!down_ && !note) {
    sent_.emplace_back(message, message + bytes);
    lied_last_ = false;
  }
  sending_.push_back(message);
}

void Channel::abandon(std::byte* message) noexcept {
  free_.push_back(message);
}

void Channel::close() noexcept {
  down_ = true;
  closing_ = true;
}

void Channel::open(link::Protocol& protocol) {
  const std::lock_guard hold(progress().lock());
  opened(protocol);
}

void Channel::judge() {
  pays_ = !pays_;
  of->world_.service.run([self = std::static_pointer_cast<Channel>(shared_from_this())] {
    const std::lock_guard hold(self->progress().lock());
    if (self->user())
      self->user()->on_path_judged();
  });
}

void Channel::end() {
  down_ = true;
  ended_ = true;
  const std::lock_guard hold(progress().lock());
  ended();
}

void Channel::take() {
  auto message = std::move(peer->sent_.front());
  peer->sent_.pop_front();
  if (!user())
    return;
  uint32_t slot = 0;
  if (received_.free.empty()) {
    slot = static_cast<uint32_t>(received_.slots.size());
    received_.slots.emplace_back();
  } else {
    slot = received_.free.back();
    received_.free.pop_back();
  }
  ++received_.out;
  received_.slots[slot] = std::move(message);
  user()->on_message({received_, slot, received_.slots[slot]});
}

void Channel::finish_send() {
  for (size_t i = 0; i < reported_; ++i) {
    free_.push_back(sending_.front());
    sending_.pop_front();
  }
  if (!std::exchange(starved_, false))
    return;
  const std::lock_guard hold(progress().lock());
  if (user())
    user()->on_tx_free();
}

bool Channel::garble(Choices& choices) {
  if (sent_.empty())
    return false;
  auto& message = sent_.back();
  switch (choices.below(6)) {
  case 0:
    message.resize(choices.below(static_cast<uint32_t>(std::min<size_t>(message.size(), 8))));
    break;
  case 1:
    message.front() = std::byte{0}; // of no kind
    break;
  case 2:
    message.front() = std::byte{0xFF};
    break;
  case 3:
    message.back() = std::byte{1};
    message.resize(message.size() + 1);
    break;
  case 4: // what it has last, of many perhaps, is not whole
    message.resize(message.size() - choices.between(1, 8));
    break;
  default:
    message[1] = std::byte{0xFF}; // of a version to come, or what must be zero
    break;
  }
  return true;
}

namespace {

template <typename Header>
std::vector<std::byte> message_of(const Header& header, size_t payload = 0) {
  std::vector<std::byte> message(sizeof header + payload);
  memcpy(message.data(), &header, sizeof header);
  return message;
}

constexpr uint64_t nobody = 0xDEAD'DEAD'DEAD;
constexpr uint32_t no_key = 0xDEAD; // of no region

} // namespace

// The answer that was sent last says otherwise: that the request was not carried out, or what was
// asked of the peer's memory lies where it does not. The request may fail for it. What is in the
// answer stays: an owner that lies of its own memory does so by its device, too.
void Channel::deny(Choices& choices) {
  namespace transfer = adverb::transfer;
  transfer::ReplyHeader reply{};
  auto& last = sent_.back();
  if (last.size() < sizeof reply || transfer::is_notice(last))
    return;
  memcpy(&reply, last.data(), sizeof reply);
  if (reply.status != static_cast<uint8_t>(transfer::Status::ok))
    return;
  if (choices.once_in(2) && reply.kind == static_cast<uint8_t>(transfer::Kind::read)) {
    reply.offset |= uint64_t{1} << choices.between(12, 63); // beyond every request
  } else if (choices.once_in(2) && reply.kind == static_cast<uint8_t>(transfer::Kind::grant)) {
    switch (choices.below(3)) {
    case 1:
      reply.rkey = no_key;
      break;
    case 2:
      reply.grant_bytes = choices.below(8);
      break;
    default:
      reply.grant_start += uint64_t{1} << 50;
      break;
    }
  } else {
    reply.status = static_cast<uint8_t>(choices.between(1, 5));
    reply.length = 0;
    last.resize(sizeof reply);
  }
  memcpy(last.data(), &reply, sizeof reply);
}

// Nothing of it may reach memory: an owner that lies of its own memory, or writes where it may,
// does so by its device, too.
void Channel::lie(Choices& choices) {
  namespace transfer = adverb::transfer;
  using transfer::Kind;
  if (down_)
    return;
  // Made of a lie, the next one might be true.
  const bool of_the_last = !std::exchange(lied_last_, true) && !sent_.empty();
  transfer::NoticeHeader notice{};
  notice.kind = transfer::notice_kind;
  notice.number = choices.below(3);
  if (role() == Role::server) {
    transfer::ReplyHeader reply{};
    reply.kind = static_cast<uint8_t>(choices.between(1, 6)); // one more than there are
    reply.status = static_cast<uint8_t>(choices.below(6));
    reply.source = nobody;
    switch (choices.below(6)) {
    case 0:
      sent_.push_back(message_of(reply)); // to nobody
      break;
    case 4:
    case 5:
      if (of_the_last)
        deny(choices);
      break;
    case 1: // of a request that is not there, or of a run that is over, or that will be
      if (!of_the_last || sent_.back().size() < sizeof reply || transfer::is_notice(sent_.back()))
        return;
      memcpy(&reply, sent_.back().data(), sizeof reply);
      if (choices.once_in(2))
        reply.request += choices.once_in(2) ? 1000 : uint64_t{0} - 1000;
      else
        reply.run += choices.once_in(2) ? 1000 : uint32_t{0} - 1000;
      if (reply.kind != static_cast<uint8_t>(Kind::write) &&
          reply.kind != static_cast<uint8_t>(Kind::read))
        return; // the others name no request
      sent_.push_back(message_of(reply, reply.length));
      break;
    case 2: // keys have ended that never were
      notice.count = 1;
      sent_.push_back(message_of(notice, sizeof(uint32_t)));
      break;
    default: // of none
      sent_.push_back(message_of(notice));
      break;
    }
    return;
  }
  transfer::RequestHeader request{};
  request.source = nobody;
  request.target = nobody;
  request.kind = static_cast<uint8_t>(choices.between(1, 6));
  switch (choices.below(6)) {
  case 0: // of a newer version, or a kind that is not known
    request.version = static_cast<uint8_t>(choices.between(0, 1));
    request.kind = choices.once_in(2) ? no_kind : request.kind;
    sent_.push_back(message_of(request));
    break;
  case 1: // for a queue pair that is not there
    sent_.push_back(message_of(request));
    break;
  case 2: // more than may be
    for (uint32_t i = choices.below(4 * credits()); i != 0; --i) {
      request.kind = static_cast<uint8_t>(Kind::query);
      sent_.push_back(message_of(request));
    }
    break;
  case 3: // of keys that have not ended, or not so
    sent_.push_back(message_of(notice));
    break;
  default: // what was asked before, once more; or of more than there is
    if (!of_the_last || sent_.back().size() < sizeof request || transfer::is_notice(sent_.back()))
      return;
    memcpy(&request, sent_.back().data(), sizeof request);
    if (request.kind == static_cast<uint8_t>(Kind::write) ||
        request.kind == static_cast<uint8_t>(Kind::release))
      return;
    request.source = nobody;
    request.run -= std::min(request.run, 1U); // its own, halted, would ask for ever
    if (choices.once_in(2)) {                 // what takes its time, or goes wrong
      request.kind = static_cast<uint8_t>(choices.between(later_kind, breaks_kind));
    } else if (choices.once_in(2)) {
      request.total = uint64_t{1} << choices.below(64);
      request.key += choices.below(2);
    }
    sent_.push_back(message_of(request));
    break;
  }
}

void Channel::forge(uint64_t target, uint64_t source, uint64_t address, uint32_t key,
                    uint64_t value) {
  namespace transfer = adverb::transfer;
  transfer::RequestHeader request{};
  request.kind = static_cast<uint8_t>(transfer::Kind::write);
  request.flags = transfer::last_part;
  request.run = 1;
  request.target = target;
  request.source = source;
  request.request = forged;
  request.address = request.total_address = address;
  request.length = sizeof value;
  request.total = sizeof value;
  request.key = key;
  auto message = message_of(request, sizeof value);
  memcpy(message.data() + sizeof request, &value, sizeof value);
  sent_.push_back(std::move(message));
  lied_last_ = true;
}

void Net::corrupt(uint32_t fibre) {
  liar_ = fibre;
  for (const auto& channel : channels_)
    channel->deaf = channel->fibre == fibre;
}

// In the name of a queue pair that is bound over another channel, or of none, or that has proven
// nothing.
void Net::forge() {
  std::vector<std::pair<Channel*, const Published*>> all;
  for (const auto& channel : channels_)
    for (const Published& one : published_)
      if (channel->fibre == liar_ && channel->role() == link::Channel::Role::client &&
          !channel->down() && one.links == channel->peer->of)
        all.emplace_back(channel.get(), &one);
  if (all.empty())
    return;
  const auto [over, target] = all[choices.below(static_cast<uint32_t>(all.size()))];
  Links& owner = *over->peer->of;
  const auto its = std::ranges::find_if(published_, [&](const Published& one) {
    return one.links == over->of && one.qp.qpn == target->qp.dest_qpn;
  });
  const uint64_t source = its == published_.end() || choices.once_in(3) ? nobody : its->qp.handle;
  const bool served = std::ranges::any_of(over->of->bound_, [&, target = target](const auto& b) {
    return b.handle == source && b.theirs == target->qp.handle && b.server.get() == over->peer &&
           b.proven;
  });
  if (served)
    return; // that would be no lie
  misused_.insert({&owner, target->qp.handle, source});
  const auto [address, key] = reachable.at(&owner)();
  over->forge(target->qp.handle, source, address, key, nobody << 16 | choices.below(1000));
}

void Net::lie() {
  if (choices.once_in(3))
    return forge();
  std::vector<Channel*> theirs;
  for (const auto& channel : channels_)
    if (channel->fibre == liar_)
      theirs.push_back(channel.get());
  if (!theirs.empty())
    theirs[choices.below(static_cast<uint32_t>(theirs.size()))]->lie(choices);
}

void Net::offer(Steps& steps) {
  for (const auto& channel : channels_) {
    if (channel->coming())
      steps.emplace_back(channel->fibre, [&c = *channel] {
        const std::lock_guard hold(c.progress().lock());
        if (c.coming()) // while this waited for the lock another may have taken it
          c.take();
      });
    if (channel->unfinished())
      steps.emplace_back(channel->fibre, [&c = *channel] { c.finish_send(); });
    if (channel->over())
      steps.emplace_back(channel->fibre, [&c = *channel] {
        c.end();
        c.peer->close(); // it hears of it
      });
  }
}

void Net::lose() {
  lost_ = true;
  if (choices.once_in(2) &&
      std::ranges::any_of(channels_, [&](const auto& c) { return c->garble(choices); }))
    return;
  for (const auto& channel : channels_)
    channel->close();
}

void Net::part() {
  parted_ = true;
  for (const auto& channel : channels_)
    channel->close();
}

void Net::judge() {
  std::vector<Channel*> clients;
  for (const auto& channel : channels_)
    if (channel->role() == link::Channel::Role::client && !channel->down())
      clients.push_back(channel.get());
  if (!clients.empty())
    clients[choices.below(static_cast<uint32_t>(clients.size()))]->judge();
}

void Net::offered(const link::Links* links, uint64_t handle, const link::Offer& offer) {
  if (offer.answer == link::wire::Answer::ok)
    offered_[{links, handle}].insert({offer.rkey, offer.address});
}

void Net::reached(uint32_t qpn, uint32_t key, uint64_t address) {
  if (address < link::slot_base || address - link::slot_base >= 4 * link::slot_page)
    return;
  const auto name = names_.find(qpn);
  if (name == names_.end())
    return; // it is being destroyed
  const auto offers = offered_.find(name->second);
  if (offers == offered_.end() || !offers->second.contains({key, address}))
    misuse.push_back("queue pair " + std::to_string(qpn) + " uses a slot that it was not offered");
}

void Net::close() {
  for (const auto& channel : channels_)
    channel->end();
}

bool Net::quiet() const {
  return std::ranges::none_of(
      channels_, [](const auto& c) { return c->coming() || c->unfinished() || c->over(); });
}

void Links::serve(std::shared_ptr<link::Protocol> protocol) {
  protocol_ = std::move(protocol);
}

void Links::publish(const link::LocalQp& qp) {
  net_.published_.push_back({qp, this});
  net_.named(qp.qpn, this, qp.handle);
}

// Who has asked for it before hears of it now.
void Links::connected(const link::LocalQp& qp) {
  for (auto& published : net_.published_) {
    if (published.qp.handle == qp.handle && published.links == this)
      published.qp = qp;
    auto& other = *published.links;
    if (std::ranges::any_of(other.searches_,
                            [&](const auto& s) { return s->qp.dest_qpn == qp.qpn; }))
      other.world_.service.run([&other] {
        for (const auto& search : std::vector(other.searches_))
          other.find(*search);
      });
  }
}

void Links::withdraw(uint32_t qpn, uint64_t handle) {
  net_.unnamed(qpn);
  std::erase_if(net_.published_, [&](const auto& p) {
    return p.qp.handle == handle && p.links == this; // handles are of each program
  });
}

void Links::bind(const link::LocalQp& qp, uint8_t, std::function<void(link::Bound)> done) {
  const auto search = std::make_shared<Search>(Search{qp, std::move(done), false, nullptr});
  searches_.push_back(search);
  world_.service.run([this, search] { seek(search, 0); });
}

// Its process has none there yet, or one that is not connected to this: asked again, as the real
// links do.
void Links::seek(const std::shared_ptr<Search>& search, int attempt) {
  if (find(*search))
    return;
  if (attempt < 4) {
    const int next = attempt + (net_.connecting == 0 ? 1 : 0);
    world_.service.after(std::chrono::milliseconds(30),
                         [this, search, next] { seek(search, next); });
    return;
  }
  cancel(search->qp.handle);
  search->done({link::Verdict::stock, nullptr, 0, "nobody has it", false});
}

std::shared_ptr<Channel> Links::open_to(Links& theirs) {
  // As much as the protocol asks for where there is so much memory for it; and the less, the more
  // waits for something.
  const uint64_t budget = uint64_t{1} << net_.choices.between(20, 24);
  const auto most = protocol_->size(budget, budget);
  const uint32_t credits = std::min(most.depth, net_.choices.between(1, 6));
  const uint32_t reported = net_.choices.between(1, credits); // not all, or none might come
  const size_t message_max = std::min<size_t>(most.message, 512 << net_.choices.below(3));
  const uint8_t newest = adverb::transfer::version_sends;
  const auto version =
      static_cast<uint8_t>(net_.choices.once_in(8) ? net_.choices.below(newest) : newest);
  auto client = std::make_shared<Channel>(*progress_, link::Channel::Role::client, fibre_, credits,
                                          reported, message_max, version);
  auto server = std::make_shared<Channel>(*theirs.progress_, link::Channel::Role::server,
                                          theirs.fibre_, credits, reported, message_max, version);
  for (const auto& end : {client, server})
    end->deaf = net_.liar_ != 0 && end->fibre == net_.liar_;
  client->peer = server.get();
  server->peer = client.get();
  client->of = this;
  server->of = &theirs;
  net_.channels_.push_back(client);
  net_.channels_.push_back(server);
  client->open(*protocol_);
  server->open(*theirs.protocol_);
  mine_.push_back(client);
  theirs.mine_.push_back(server);
  return client;
}

bool Links::find(Search& search) {
  if (search.over)
    return true;
  if (net_.lost_)
    return false;
  const link::LocalQp& qp = search.qp;
  const auto found = std::ranges::find_if(net_.published_, [&](const auto& p) {
    return p.qp.qpn == qp.dest_qpn && p.qp.connected && p.qp.dest_qpn == qp.qpn;
  });
  if (found == net_.published_.end())
    return false;
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): the list may grow meanwhile
  const auto theirs = *found;
  auto& kept = net_.clients_[{this, theirs.links}];
  const auto client = net_.shared_ && kept && !kept->down() ? kept : open_to(*theirs.links);
  kept = client;
  const auto done = search.done;
  const auto claim = search.claim;
  cancel(qp.handle);
  const std::shared_ptr server =
      std::static_pointer_cast<Channel>(client->peer->shared_from_this());
  const bool proven = (!net_.proves_ || net_.choices.once_in(2)) &&
                      !net_.misused_.contains({theirs.links, theirs.qp.handle, qp.handle});
  // What it was bound to before is unbound with it, but nothing is proven by that any more.
  bound_.insert(bound_.begin(), {qp.handle, theirs.qp.handle, server, theirs.links, proven});
  server->bind(theirs.qp.handle, qp.handle, proven);
  done({link::Verdict::adverb, client, theirs.qp.handle, {}, true, proven});
  if (claim && !proven)
    claim();
  return true;
}

void Links::give_up(uint64_t handle) {
  const auto at = claims_.find(handle);
  if (at == claims_.end())
    return;
  at->second.slots->give(at->second.slot);
  claims_.erase(at);
}

link::Offer Links::make_claim(uint64_t handle, uint32_t key) {
  using link::wire::Answer;
  give_up(handle);
  const auto bound = std::ranges::find(bound_, handle, &Bound::handle);
  const auto found = std::ranges::find_if(net_.published_, [&](const auto& p) {
    return bound != bound_.end() && p.qp.handle == bound->theirs && p.links == bound->links;
  });
  if (bound == bound_.end() || found == net_.published_.end())
    return {Answer::no_such_qp};
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): the list may change meanwhile
  const link::LocalQp theirs = found->qp;
  if (!theirs.is_virtual(key))
    return {Answer::real_key};
  Claim claim;
  claim.slots = theirs.slots.lock();
  // Of any kind that the queue pair could be used by: programs' allow all.
  constexpr unsigned all =
      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  constexpr std::array without{0U, unsigned{IBV_ACCESS_REMOTE_WRITE},
                               unsigned{IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ}};
  const unsigned left_out =
      (theirs.access & all) == all ? without[net_.choices.between(0, without.size() - 1)] : 0;
  const auto kind = link::slot_kind_for(theirs.access & ~left_out, theirs.responder_resources);
  if (kind == link::SlotKind::none)
    return {Answer::refused};
  if (const int rc = claim.slots->take(kind, claim.slot); rc != 0)
    return {rc == EAGAIN ? Answer::not_there : Answer::no_resources};
  const size_t bytes = kind == link::SlotKind::atomic ? link::slot_word_bytes : claim.share.size();
  for (size_t i = 0; i < bytes; ++i)
    claim.share[i] = static_cast<uint8_t>(net_.choices.between(1, 255));
  link::Offer offer{Answer::ok, kind, claim.slot.rkey, claim.slot.address};
  if (kind == link::SlotKind::write)
    offer.share = claim.share;
  else
    claim.slots->put(claim.slot, claim.share);
  claims_[handle] = claim;
  return offer;
}

// The peer may have no slot just now, or find nothing in it.
void Links::claim(uint64_t handle, uint32_t key, std::function<void(const link::Offer&)> offered) {
  const auto claim = [this, handle, key, offered = std::move(offered)] {
    const auto offer =
        puts_off(handle) ? link::Offer{link::wire::Answer::not_there} : make_claim(handle, key);
    net_.offered(this, handle, offer);
    offered(offer);
  };
  world_.service.run([this, handle, claim] {
    const auto search = std::ranges::find_if(
        searches_, [handle](const auto& s) { return s->qp.handle == handle && !s->over; });
    if (search != searches_.end())
      (*search)->claim = claim;
    else
      claim();
  });
}

void Links::prove(uint64_t handle, const link::wire::Share& read,
                  std::function<void(link::wire::Answer)> done) {
  world_.service.run([this, handle, read, done = std::move(done)] { look(handle, read, done, 0); });
}

// What is written may be told of before it is there.
void Links::look(uint64_t handle, const link::wire::Share& read,
                 const std::function<void(link::wire::Answer)>& done, int looks) {
  using link::wire::Answer;
  const auto bound = std::ranges::find(bound_, handle, &Bound::handle);
  const auto at = claims_.find(handle);
  if (bound == bound_.end())
    return;
  auto answer = Answer::not_there;
  if (at != claims_.end() && !puts_off(handle)) {
    const Claim& claim = at->second;
    const bool written = claim.slot.kind == link::SlotKind::write;
    const auto found = written ? claim.slots->look(claim.slot) : read;
    if (found == claim.share)
      answer = Answer::ok;
    else if (!written && found != link::wire::Share{})
      answer = Answer::refused;
    else if (looks < looks_max) {
      world_.service.after(
          look_again, [this, handle, read, done, looks] { look(handle, read, done, looks + 1); });
      return;
    }
  }
  if (net_.misused_.contains({bound->links, bound->theirs, handle}))
    answer = Answer::refused;
  if (answer == Answer::ok) {
    bound->proven = true;
    bound->server->prove(bound->theirs, handle);
  }
  give_up(handle);
  done(answer);
}

// What was sent before may arrive behind it.
void Links::unbind(uint64_t handle) {
  world_.service.run([this, handle] {
    cancel(handle);
    give_up(handle);
    std::erase_if(bound_, [handle](const Bound& bound) {
      if (bound.handle == handle)
        bound.server->unbind(bound.theirs, handle);
      return bound.handle == handle;
    });
  });
}

void Links::cancel(uint64_t handle) {
  std::erase_if(searches_, [handle](const auto& search) {
    return search->qp.handle == handle && (search->over = true);
  });
}

bool Links::Polled::progress() {
  if (links.net_.choices.below(2) == 0)
    return false;
  const auto at = std::ranges::find_if(links.mine_, [](const auto& c) { return c->coming(); });
  if (at == links.mine_.end())
    return false;
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): it may go while it is taken from
  const std::shared_ptr channel = *at;
  if (!lock_.try_lock())
    return false;
  const std::lock_guard hold(lock_, std::adopt_lock);
  if (!channel->coming())
    return false;
  channel->take();
  return true;
}

} // namespace sim
