// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "transfer/initiator.h"
#include "link/service.h"
#include "observe/counters.h"
#include "observe/log.h"

#include <algorithm>
#include <vector>

namespace adverb::transfer {

using observe::Counter;

namespace {
// Verdicts on keys are small; a peer that registers for ever must not make us grow for ever.
constexpr size_t keys_max = 65536;
} // namespace

Initiator::Initiator(std::shared_ptr<link::Channel> channel) : channel_(std::move(channel)) {}

void Initiator::attach(uint64_t handle, Source* source) {
  const std::lock_guard hold(lock_);
  sources_[handle] = source;
}

std::shared_ptr<Initiator> Initiator::of(const std::shared_ptr<link::Channel>& channel) {
  const std::lock_guard hold(channel->device().progress_lock());
  if (channel->down())
    return nullptr;
  if (!channel->user_data)
    channel->user_data = std::make_shared<Initiator>(channel);
  return std::static_pointer_cast<Initiator>(channel->user_data);
}

// Calls into sources run under the progress lock only, so holding it once means none is left.
void Initiator::detach(uint64_t handle) {
  const std::lock_guard barrier(channel_->device().progress_lock());
  const std::lock_guard hold(lock_);
  sources_.erase(handle);
  std::erase(waiting_, handle);
}

std::byte* Initiator::begin(uint64_t waiter) {
  const std::lock_guard hold(lock_);
  if (unanswered_ < channel_->credits() && !channel_->down()) {
    if (std::byte* message = channel_->acquire()) {
      ++unanswered_;
      return message;
    }
  }
  observe::count(Counter::credits_waits);
  if (waiter != 0 && std::find(waiting_.begin(), waiting_.end(), waiter) == waiting_.end())
    waiting_.push_back(waiter);
  return nullptr;
}

void Initiator::send(std::byte* message, size_t bytes) {
  channel_->send(message, bytes);
}

void Initiator::cancel(std::byte* message) {
  channel_->abandon(message);
  const std::lock_guard hold(lock_);
  if (unanswered_ != 0)
    --unanswered_;
  if (waiting_.empty())
    return;
  // No reply may be on its way to wake the waiter, and the caller holds its queue pair's lock.
  link::Service::get().run([channel = channel_] {
    const std::lock_guard progress(channel->device().progress_lock());
    if (auto* initiator = static_cast<Initiator*>(channel->user_data.get()))
      initiator->resume();
  });
}

bool Initiator::lost() const {
  const std::lock_guard hold(lock_);
  return lost_;
}

std::optional<bool> Initiator::key(uint32_t rkey) const {
  const std::lock_guard hold(lock_);
  const auto it = keys_.find(rkey);
  return it == keys_.end() ? std::nullopt : std::optional(it->second);
}

void Initiator::learn(uint32_t rkey, bool is_virtual) {
  const std::lock_guard hold(lock_);
  if (keys_.size() >= keys_max)
    keys_.clear();
  keys_[rkey] = is_virtual;
}

void Initiator::on_message(link::RxBuffer message) {
  const auto parsed = parse_reply(message.bytes());
  if (!parsed) {
    observe::count(Counter::malformed_messages);
    if (observe::log_every("malformed-reply", 10))
      observe::log_error("a peer sent a malformed reply of {} bytes; closing the link",
                         message.bytes().size());
    channel_->close();
    return;
  }
  Source* source = nullptr;
  {
    const std::lock_guard hold(lock_);
    if (unanswered_ != 0)
      --unanswered_;
    const auto it = sources_.find(parsed->header.source);
    if (it != sources_.end())
      source = it->second;
  }
  if (source != nullptr)
    source->on_reply(parsed->header, parsed->payload);
  message.release();
  resume();
}

void Initiator::on_tx_free() {
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
      const auto it = sources_.find(waiting_.front());
      waiting_.pop_front();
      if (it == sources_.end())
        continue;
      source = it->second;
    }
    source->on_credit();
  }
}

void Initiator::on_down() {
  std::vector<Source*> all;
  {
    const std::lock_guard hold(lock_);
    lost_ = true;
    unanswered_ = 0;
    waiting_.clear();
    for (const auto& [handle, source] : sources_)
      all.push_back(source);
  }
  for (Source* source : all)
    source->on_down();
}

} // namespace adverb::transfer
