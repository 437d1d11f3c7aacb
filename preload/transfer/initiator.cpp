// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "transfer/initiator.h"
#include "world/world.h"

#include <algorithm>
#include <vector>

namespace adverb::transfer {

using observe::Counter;

Initiator::Initiator(World& world, std::shared_ptr<link::Channel> channel)
    : world_(world), channel_(std::move(channel)), leases_(std::make_shared<Leases>()) {}

void Initiator::attach(uint64_t handle, Source* source) {
  const std::lock_guard hold(lock_);
  sources_[handle] = {source};
}

std::shared_ptr<Initiator> Initiator::of(const std::shared_ptr<link::Channel>& channel) {
  const std::lock_guard hold(channel->progress().lock());
  if (channel->down())
    return nullptr;
  return std::dynamic_pointer_cast<Initiator>(channel->user());
}

// Calls into sources run under the progress lock only, so holding it once means none is left.
void Initiator::detach(uint64_t handle) {
  const std::lock_guard barrier(channel_->progress().lock());
  const std::lock_guard hold(lock_);
  sources_.erase(handle);
  std::erase(waiting_, handle);
}

bool Initiator::may_begin(const Attached* attached) const {
  if (unanswered_ >= channel_->credits())
    return false;
  const uint32_t left = channel_->credits() - unanswered_;
  if (attached == nullptr || attached->unanswered == 0)
    return true;
  if (sources_.size() == 1)
    return left > 1; // another one may come to share the link
  return attached->unanswered < std::min(attached->answered + 1, left);
}

void Initiator::Attached::begin() noexcept {
  if (unanswered == 0 && !denied)
    answered = 0;
  ++unanswered;
  denied = false;
}

void Initiator::Attached::answer() noexcept {
  if (unanswered != 0)
    --unanswered;
  ++answered;
}

std::byte* Initiator::begin(uint64_t handle) {
  const std::lock_guard hold(lock_);
  const auto at = sources_.find(handle);
  Attached* const attached = at == sources_.end() ? nullptr : &at->second;
  if (may_begin(attached) && !channel_->down()) {
    if (std::byte* message = channel_->acquire()) {
      ++unanswered_;
      if (attached != nullptr)
        attached->begin();
      return message;
    }
  }
  if (attached != nullptr)
    attached->denied = true;
  world_.counters.count(Counter::credits_waits);
  if (std::find(waiting_.begin(), waiting_.end(), handle) == waiting_.end())
    waiting_.push_back(handle);
  return nullptr;
}

std::byte* Initiator::begin_aside(uint64_t handle) {
  const std::lock_guard hold(lock_);
  if (unanswered_ >= channel_->credits() || channel_->down())
    return nullptr;
  std::byte* const message = channel_->acquire();
  if (message == nullptr)
    return nullptr;
  ++unanswered_;
  if (const auto at = sources_.find(handle); at != sources_.end())
    at->second.begin();
  return message;
}

void Initiator::send(std::byte* message, size_t bytes) {
  channel_->send(message, bytes);
}

void Initiator::cancel(uint64_t handle, std::byte* message) {
  channel_->abandon(message);
  const std::lock_guard hold(lock_);
  if (unanswered_ != 0)
    --unanswered_;
  if (const auto at = sources_.find(handle); at != sources_.end())
    at->second.answer();
  if (waiting_.empty())
    return;
  // No reply may be on its way to wake the waiter, and the caller holds its queue pair's lock.
  world_.service.run([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self)
      return;
    const std::lock_guard progress(self->channel_->progress().lock());
    self->resume();
  });
}

bool Initiator::lost() const {
  const std::lock_guard hold(lock_);
  return lost_;
}

// Replies in one message, of which the first is this.
void Initiator::count(const ReplyHeader& first, uint32_t replies) {
  if (channel_->peer() == nullptr)
    return;
  const auto kind = static_cast<Kind>(first.kind);
  if (kind == Kind::query)
    channel_->peer()->count(link::Peer::Number::key_queries);
  else if (kind != Kind::release && kind != Kind::lease && kind != Kind::view &&
           kind != Kind::yield)
    channel_->peer()->count(link::Peer::Number::requests, replies);
}

void Initiator::reject(const char* what, size_t bytes) {
  world_.counters.count(Counter::malformed_messages);
  if (channel_->peer() != nullptr)
    channel_->peer()->count(link::Peer::Number::malformed_messages);
  if (world_.log.every("malformed-reply", 10))
    world_.log.error("a peer sent {} of {} bytes; closing the link", what, bytes);
  channel_->close();
}

// Nothing of a message is believed before all of it has been looked at.
void Initiator::on_message(link::RxBuffer message) {
  assert(channel_->progress().lock().held());
  silent_.store(false, std::memory_order_relaxed);
  if (is_notice(message.bytes()))
    return on_notice(std::move(message));
  auto rest = message.bytes();
  const auto first = next_reply(rest);
  bool good = first.has_value();
  uint32_t replies = 1;
  for (; good && !rest.empty(); ++replies) {
    const auto next = next_reply(rest);
    good = next && next->header.source == first->header.source;
  }
  if (!good)
    return reject("a malformed reply", message.bytes().size());
  count(first->header, replies);
  if (first->header.kind == static_cast<uint8_t>(Kind::lease))
    leased(first->header);
  else if (first->header.kind == static_cast<uint8_t>(Kind::view))
    viewed(first->header, first->payload);
  Source* source = nullptr;
  {
    const std::lock_guard hold(lock_);
    if (unanswered_ != 0)
      --unanswered_;
    const auto it = sources_.find(first->header.source);
    if (it != sources_.end()) {
      source = it->second.source;
      it->second.answer();
    }
  }
  if (source != nullptr)
    source->on_replies(message.bytes());
  message.release();
  resume();
  yield();
  if (returning_ && leases_->all_back()) // for want of memory nobody has said so
    all_back_now();
}

// Keys of the peer's have ended: what was known of them is forgotten before it is told so.
void Initiator::on_notice(link::RxBuffer message) {
  const auto parsed = parse_notice(message.bytes());
  if (!parsed || parsed->header.count == 0 || unacknowledged_ || returning_)
    return reject("a malformed notice", message.bytes().size());
  std::vector<uint32_t> keys(parsed->payload.size() / sizeof(uint32_t));
  memcpy(keys.data(), parsed->payload.data(), keys.size() * sizeof(uint32_t));
  if (parsed->header.of == Of::leases)
    return recalled(keys, parsed->header.number);
  trace_end(observe::LeaseEnd::region_ended, leases_->forget(keys));
  for (const uint32_t key : keys)
    verdicts_.forget(key);
  // Requests name the real keys of those that were served under these.
  const auto real = verdicts_.forget_served(keys);
  keys.insert(keys.end(), real.begin(), real.end());
  for (Source* const source : sources())
    source->on_keys_ended(keys);
  unacknowledged_ = parsed->header.number;
  acknowledge();
}

// False: there is no room for it, or it is there.
bool Initiator::add(const Lease& lease) {
  if (!leases_->add(lease))
    return false;
  world_.trace.add({.kind = observe::TraceKind::lease,
                    .first = static_cast<uint8_t>(lease.is_view() ? 1 : 0),
                    .key = lease.key,
                    .address = lease.start,
                    .bytes = lease.bytes});
  return true;
}

void Initiator::trace_end(observe::LeaseEnd why, size_t leases) noexcept {
  if (leases != 0)
    world_.trace.add({.kind = observe::TraceKind::lease_end,
                      .first = static_cast<uint8_t>(why),
                      .address = leases});
}

// No further request uses them from here on; when those under way are complete they are back.
void Initiator::recalled(std::span<const uint32_t> leases, uint32_t notice) {
  world_.counters.count(Counter::leases_recalled, leases.size());
  trace_end(observe::LeaseEnd::called_back, leases.size());
  // Whoever ends the last use holds a queue pair's lock.
  const size_t uses = leases_->recall(leases, [&world = world_, weak = weak_from_this()] {
    try {
      world.service.run([weak] {
        if (const auto self = weak.lock())
          self->all_back();
      });
    } catch (const std::bad_alloc&) { // the next message finds it
      world.counters.count(Counter::exceptions_caught);
    }
  });
  if (uses == 0) {
    unacknowledged_ = notice;
    return acknowledge();
  }
  world_.counters.count(Counter::uses_at_recall, uses);
  returning_ = notice;
  for (Source* const source : sources())
    source->on_recall();
}

void Initiator::all_back() {
  const std::lock_guard progress(channel_->progress().lock());
  if (returning_ && leases_->all_back())
    all_back_now();
}

void Initiator::all_back_now() {
  unacknowledged_ = std::exchange(returning_, std::nullopt);
  acknowledge();
}

// Whichever queue pair has asked: it may be gone. The key came with the question, and comes back.
void Initiator::leased(const ReplyHeader& reply) {
  const auto key = static_cast<uint32_t>(reply.request);
  if (reply.status == static_cast<uint8_t>(Status::refused))
    leases_->refused(key);
  if (reply.status == static_cast<uint8_t>(Status::full))
    leases_->no_room(key, reply.grant_start, world_.clock.now());
  if (reply.status != static_cast<uint8_t>(Status::ok))
    return;
  if (reply.grant_bytes == 0 || reply.grant_start + reply.grant_bytes < reply.grant_start ||
      !add({.number = static_cast<uint32_t>(reply.grant),
            .key = key,
            .rkey = reply.rkey,
            .access = static_cast<unsigned>(reply.offset),
            .start = reply.grant_start,
            .bytes = reply.grant_bytes,
            .heat = static_cast<uint32_t>(reply.request >> 32)}))
    to_yield_.push_back(static_cast<uint32_t>(reply.grant));
  end_term_later();
}

void Initiator::viewed(const ReplyHeader& reply, std::span<const std::byte> pattern) {
  const auto key = static_cast<uint32_t>(reply.request);
  if (reply.status == static_cast<uint8_t>(Status::refused) ||
      reply.status == static_cast<uint8_t>(Status::not_virtual) ||
      reply.status == static_cast<uint8_t>(Status::unsupported))
    leases_->no_views(key, world_.clock.now());
  if (reply.status != static_cast<uint8_t>(Status::ok))
    return;
  bool taken = false;
  if (pattern.size() == registration::pattern_bytes && reply.grant_bytes != 0 &&
      reply.grant_start + reply.grant_bytes >= reply.grant_start) {
    auto mine = std::make_shared<registration::Pattern>();
    std::ranges::copy(pattern, mine->begin());
    taken = add({.number = static_cast<uint32_t>(reply.grant),
                 .key = key,
                 .rkey = reply.rkey,
                 .access = IBV_ACCESS_REMOTE_READ,
                 .start = reply.grant_start,
                 .bytes = reply.grant_bytes,
                 .pattern = std::move(mine)});
  }
  if (!taken)
    to_yield_.push_back(static_cast<uint32_t>(reply.grant));
  end_term_later();
}

void Initiator::end_term_later() {
  if ((!leases_->any() && !leases_->any_views()) || timed_)
    return;
  world_.service.after(Leases::term, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self)
      return;
    const std::lock_guard progress(self->channel_->progress().lock());
    self->timed_ = false;
    if (self->channel_->down())
      return;
    const auto unused = self->leases_->unused();
    self->trace_end(observe::LeaseEnd::unused, unused.size());
    self->to_yield_.insert(self->to_yield_.end(), unused.begin(), unused.end());
    self->yield();
    self->end_term_later();
  });
  timed_ = true;
}

// What finds no credit goes with the next one.
void Initiator::yield() {
  leases_->take_given_up(to_yield_);
  while (!to_yield_.empty()) {
    std::byte* message = nullptr;
    {
      const std::lock_guard hold(lock_);
      if (unanswered_ >= channel_->credits() || channel_->down() ||
          (message = channel_->acquire()) == nullptr)
        return;
      ++unanswered_;
    }
    RequestHeader h{};
    h.kind = static_cast<uint8_t>(Kind::yield);
    h.address = to_yield_.back();
    to_yield_.pop_back();
    memcpy(message, &h, sizeof h);
    channel_->send(message, sizeof h);
  }
}

void Initiator::acknowledge() {
  if (!unacknowledged_)
    return;
  std::byte* message = channel_->acquire();
  if (message == nullptr)
    return; // on_tx_free() comes
  NoticeHeader h{};
  h.kind = notice_kind;
  h.number = *unacknowledged_;
  unacknowledged_.reset();
  memcpy(message, &h, sizeof h);
  channel_->send(message, sizeof h);
}

void Initiator::on_tx_free() {
  acknowledge();
  resume();
}

// First come first served, while credits last. A waiter may need none any more, or queue itself
// again for want of a message buffer (on_tx_free() comes), so each is asked once.
void Initiator::resume() {
  size_t turns = 0;
  {
    const std::lock_guard hold(lock_);
    turns = waiting_.size();
  }
  for (; turns != 0; --turns) {
    Source* source = nullptr;
    {
      const std::lock_guard hold(lock_);
      if (waiting_.empty() || unanswered_ >= channel_->credits())
        return;
      const uint64_t handle = waiting_.front();
      waiting_.pop_front();
      const auto it = sources_.find(handle);
      if (it == sources_.end())
        continue;
      if (!may_begin(&it->second)) { // as others do not
        waiting_.push_back(handle);
        continue;
      }
      source = it->second.source;
    }
    source->on_credit();
  }
}

void Initiator::on_down() {
  leases_->close();
  {
    const std::lock_guard hold(lock_);
    lost_ = true;
    unanswered_ = 0;
    waiting_.clear();
  }
  for (Source* const source : sources())
    source->on_down();
}

void Initiator::on_path_judged() {
  for (Source* const source : sources())
    source->on_path_judged();
}

// They are called without the lock, under the progress lock, without which none goes.
std::vector<Source*> Initiator::sources() const {
  std::vector<Source*> all;
  const std::lock_guard hold(lock_);
  for (const auto& [handle, attached] : sources_)
    all.push_back(attached.source);
  return all;
}

} // namespace adverb::transfer
