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

bool ToldKeys::overdue() {
  const std::lock_guard held(lock_);
  return !notified_.empty() && ++told_since_ > told_max &&
         world_.clock.now() - notified_at_ > patience;
}

void ToldKeys::hold(std::shared_ptr<Key> key) {
  assert(channel_->progress().lock().held());
  if (overdue()) {
    if (world_.log.every("key-ends", 10))
      world_.log.warn("a peer is cut off: it asks for ever more keys, and for 60 s has not "
                      "acknowledged that keys of ended regions are void");
    channel_->close();
  }
  ends_.watch(*key, shared_from_this());
  const uint32_t value = key->value();
  told_.insert_or_assign(value, std::move(key));
}

void ToldKeys::ended(std::shared_ptr<Key> key) {
  const std::lock_guard held(lock_);
  if (closed_)
    return;
  waiting_.push_back(std::move(key));
  notify(held);
}

// Sends the next notice unless one is out. Without room now, on_tx_free() comes.
void ToldKeys::notify(const std::lock_guard<Mutex>& held) {
  if (one_is_out() || notify_of_leases(held) || waiting_.empty())
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
    const uint32_t key = waiting_.front()->value();
    memcpy(at, &key, sizeof key);
    notified_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  notified_at_ = world_.clock.now();
  told_since_ = 0;
  channel_->send(message, static_cast<size_t>(at - message));
}

void ToldKeys::recall(std::span<const uint32_t> leases) {
  const std::lock_guard held(lock_);
  if (closed_)
    return;
  recalls_.insert(recalls_.end(), leases.begin(), leases.end());
  notify(held);
}

// True: keys have to wait, for memory waits to be changed.
bool ToldKeys::notify_of_leases(const std::lock_guard<Mutex>& /*held*/) {
  if (recalls_.empty())
    return false;
  std::byte* message = channel_->acquire();
  if (message == nullptr)
    return true; // on_tx_free() comes
  NoticeHeader h{};
  const size_t room = (channel_->message_max() - sizeof h) / sizeof(uint32_t);
  h.kind = notice_kind;
  h.of = Of::leases;
  h.number = ++number_;
  h.count = static_cast<uint16_t>(std::min<size_t>({room, recalls_.size(), UINT16_MAX}));
  const auto rest = recalls_.begin() + h.count;
  recalled_.assign(recalls_.begin(), rest);
  recalls_.erase(recalls_.begin(), rest);
  memcpy(message, &h, sizeof h);
  memcpy(message + sizeof h, recalled_.data(), recalled_.size() * sizeof(uint32_t));
  notified_at_ = world_.clock.now();
  told_since_ = 0;
  channel_->send(message, sizeof h + recalled_.size() * sizeof(uint32_t));
  return true;
}

bool ToldKeys::awaits(uint32_t number) {
  const std::lock_guard held(lock_);
  return one_is_out() && number == number_;
}

void ToldKeys::acknowledged(uint32_t number) {
  assert(channel_->progress().lock().held());
  Keys over; // let go of without the lock: a key goes back to its pool
  {
    const std::lock_guard held(lock_);
    if (number != number_)
      return; // of a channel that has ended meanwhile
    over = std::exchange(notified_, {});
    returned_.insert(returned_.end(), recalled_.begin(), recalled_.end());
    recalled_.clear();
    notify(held);
  }
  for (const auto& key : over)
    told_.erase(key->value());
}

void ToldKeys::on_tx_free() {
  const std::lock_guard held(lock_);
  notify(held);
}

void ToldKeys::close() {
  assert(channel_->progress().lock().held());
  std::deque<std::shared_ptr<Key>> waiting;
  Keys notified;
  {
    const std::lock_guard held(lock_);
    closed_ = true;
    waiting.swap(waiting_);
    notified.swap(notified_);
  }
  told_.clear();
}

} // namespace adverb::transfer
