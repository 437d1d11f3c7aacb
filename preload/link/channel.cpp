// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/channel.h"

#include <mutex>

namespace adverb::link {

void Channel::bind(uint64_t handle, uint64_t peers, bool proven) {
  const std::lock_guard hold(progress_.lock());
  const auto [at, fresh] = bound_.try_emplace(handle, Bound{peers, false, proven});
  if (fresh)
    return;
  if (at->second.peers == peers && !at->second.ended) { // once more, over another connection
    at->second.proven = at->second.proven || proven;
    return;
  }
  const bool was = !at->second.ended;
  at->second = {peers, false, proven};
  if (was && user_)
    user_->on_unbound(handle);
}

void Channel::prove(uint64_t handle, uint64_t peers) {
  const std::lock_guard hold(progress_.lock());
  const auto at = bound_.find(handle);
  if (at != bound_.end() && at->second.peers == peers && !at->second.ended)
    at->second.proven = true;
}

void Channel::unbind(uint64_t handle, uint64_t peers) {
  const std::lock_guard hold(progress_.lock());
  const auto at = bound_.find(handle);
  if (at == bound_.end() || at->second.peers != peers || at->second.ended)
    return;
  ended_.emplace_back(handle, peers);
  at->second.ended = true;
  if (user_)
    user_->on_unbound(handle);
  if (ended_.size() <= ended_max)
    return;
  const auto [old, old_peers] = ended_.front();
  ended_.pop_front();
  const auto forgotten = bound_.find(old);
  if (forgotten != bound_.end() && forgotten->second.ended && forgotten->second.peers == old_peers)
    bound_.erase(forgotten);
}

Channel::Binding Channel::binding(uint64_t handle, uint64_t peers) const noexcept {
  assert(progress_.lock().held());
  const auto at = bound_.find(handle);
  if (at == bound_.end() || at->second.peers != peers)
    return Binding::none;
  if (at->second.ended)
    return Binding::ended;
  return at->second.proven ? Binding::bound : Binding::none;
}

} // namespace adverb::link
