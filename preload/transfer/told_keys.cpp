// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "transfer/told_keys.h"
#include "transfer/messages.h"
#include "world/world.h"

#include <algorithm>
#include <utility>

namespace adverb::transfer {

using registration::Key;

namespace {
constexpr uint8_t notices_since = 1; // version of the protocol
}

void KeyEnds::watch(const Key& key, const std::shared_ptr<ToldKeys>& teller) {
  const std::lock_guard hold(lock_);
  auto& tellers = tellers_[&key];
  // Links come and go while a key lives.
  std::erase_if(tellers, [](const auto& other) { return other.expired(); });
  tellers.push_back(teller);
}

bool KeyEnds::unwatch(const Key& key, const ToldKeys& teller) {
  const std::lock_guard hold(lock_);
  const auto at = tellers_.find(&key);
  return at != tellers_.end() && std::erase_if(at->second, [&](const auto& other) {
                                   return other.lock().get() == &teller;
                                 }) != 0;
}

void KeyEnds::ended(const std::shared_ptr<Key>& key) {
  std::vector<std::weak_ptr<ToldKeys>> tellers;
  {
    const std::lock_guard hold(lock_);
    const auto at = tellers_.find(key.get());
    if (at == tellers_.end())
      return;
    tellers = std::move(at->second);
    tellers_.erase(at);
  }
  for (const auto& weak : tellers)
    if (const auto teller = weak.lock())
      teller->ended(key);
}

ToldKeys::ToldKeys(World& world, KeyEnds& ends, std::shared_ptr<link::Channel> channel)
    : world_(world), ends_(ends), channel_(std::move(channel)),
      keeps_count_(channel_->version() >= notices_since) {}

void ToldKeys::tell_first(const registration::Regions& regions, uint32_t key) {
  auto token = regions.key_token(key);
  if (!token)
    return;
  hold(token);
  // Its region may have gone before the key was watched; then nobody else says so.
  if (regions.key_token(key) != token && ends_.unwatch(*token, *this))
    ended(std::move(token));
}

void ToldKeys::hold(std::shared_ptr<Key> key) {
  assert(channel_->progress().lock().held());
  ends_.watch(*key, shared_from_this());
  const uint32_t value = key->value();
  told_.insert_or_assign(value, std::move(key));
}

void ToldKeys::ended(std::shared_ptr<Key> key) {
  const std::lock_guard held(lock_);
  if (closed_)
    return;
  waiting_.push_back({std::move(key), world_.clock.now()});
  if (waiting_.size() + notified_.size() > ending_max)
    return cut("too many of them wait");
  notify(held);
  watch_over(held);
}

// Sends the next notice unless one is out. Without room now, on_tx_free() comes.
void ToldKeys::notify(const std::lock_guard<std::mutex>& /*held*/) {
  if (!notified_.empty() || waiting_.empty())
    return;
  std::byte* message = channel_->acquire();
  if (message == nullptr)
    return;
  NoticeHeader h{};
  const size_t room = (channel_->message_max() - sizeof h) / sizeof(uint32_t);
  h.kind = notice_kind;
  h.number = ++number_;
  h.count = static_cast<uint16_t>(std::min(room, waiting_.size()));
  memcpy(message, &h, sizeof h);
  std::byte* at = message + sizeof h;
  for (uint16_t i = 0; i < h.count; ++i, at += sizeof(uint32_t)) {
    const uint32_t key = waiting_.front().key->value();
    memcpy(at, &key, sizeof key);
    notified_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  channel_->send(message, static_cast<size_t>(at - message));
}

bool ToldKeys::acknowledged(uint32_t number) {
  assert(channel_->progress().lock().held());
  std::vector<Ending> over; // let go of without the lock: a key goes back to its pool
  {
    const std::lock_guard held(lock_);
    if (notified_.empty() || number != number_)
      return false;
    over = std::exchange(notified_, {});
    notify(held);
  }
  for (const Ending& one : over)
    told_.erase(one.key->value());
  return true;
}

void ToldKeys::on_tx_free() {
  const std::lock_guard held(lock_);
  notify(held);
}

// One timer while anything waits, for the one that has waited longest.
void ToldKeys::watch_over(const std::lock_guard<std::mutex>& /*held*/) {
  if (watched_ || closed_ || (notified_.empty() && waiting_.empty()))
    return;
  watched_ = true;
  const auto oldest = notified_.empty() ? waiting_.front().since : notified_.front().since;
  world_.service.after(oldest + patience - world_.clock.now(), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self)
      return;
    const std::lock_guard held(self->lock_);
    self->watched_ = false;
    const auto due = self->world_.clock.now() - patience;
    if (!self->closed_ && ((!self->notified_.empty() && self->notified_.front().since <= due) ||
                           (!self->waiting_.empty() && self->waiting_.front().since <= due)))
      self->cut("it has not acknowledged one for 60 s");
    else
      self->watch_over(held);
  });
}

void ToldKeys::cut(const char* why) {
  if (world_.log.every("key-ends", 10))
    world_.log.warn("a peer is cut off because it does not take note that keys of regions it used "
                    "have ended: {}",
                    why);
  channel_->close();
}

void ToldKeys::close() {
  assert(channel_->progress().lock().held());
  std::deque<Ending> waiting;
  std::vector<Ending> notified;
  {
    const std::lock_guard held(lock_);
    closed_ = true;
    waiting.swap(waiting_);
    notified.swap(notified_);
  }
  told_.clear();
}

} // namespace adverb::transfer
