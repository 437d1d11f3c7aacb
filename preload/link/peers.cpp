// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/peers.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <mutex>

namespace adverb::link {

using observe::PeerEntry;
using observe::PeerNumber;

namespace {

// What people look at need not be newer, and a program that is asked without pause is to write
// seldom.
constexpr std::chrono::milliseconds publish_after{200};

void add(PeerEntry& to, const PeerEntry& from) {
  to.processes += from.processes;
  for (size_t i = 0; i < observe::kPeerNumbers; ++i)
    to.numbers[i] += from.numbers[i];
}

} // namespace

std::chrono::nanoseconds Allowance::wait(std::chrono::nanoseconds now, bool counts) {
  const std::lock_guard hold(lock_);
  if (const auto gone = std::chrono::floor<std::chrono::seconds>(now - since_); gone.count() > 0) {
    since_ += gone;
    used_ -= std::min(used_, static_cast<uint64_t>(gone.count()) * a_second_);
  }
  if (used_ == 0) // the second begins with the first
    since_ = now;
  const auto due = since_ + std::chrono::seconds(used_ / a_second_);
  used_ += counts ? 1 : 0;
  return std::max(due - now, std::chrono::nanoseconds(0));
}

void Peer::change() noexcept {
  if (changed_.exchange(true))
    return;
  if (const auto peers = peers_.lock())
    peers->publish_soon();
}

void Peer::has(const Now& link) noexcept {
  now_.links += link.links;
  now_.channels += link.channels;
  now_.qps_bound += link.qps_bound;
  now_.qps_proven += link.qps_proven;
}

std::shared_ptr<Peer> Peers::meet(observe::PeerRole role, const std::string& address,
                                  const wire::Id& process, bool vouched) {
  assert(world_.service.on_thread());
  if (known_.size() >= known_max)
    publish();
  const Held held(lock_);
  const PeerName name{role, address, process, vouched};
  auto& peer = known_[name];
  if (!peer) {
    PeerEntry who{};
    address.copy(who.address, sizeof who.address - 1);
    std::ranges::copy(process, who.process);
    who.role = role;
    who.processes = 1;
    peer = std::make_shared<Peer>(weak_from_this(), name, who);
    peer->changed_ = true;
    publish_soon();
  }
  return peer;
}

void Peers::publish_soon() noexcept {
  if (due_.load(std::memory_order_relaxed) || due_.exchange(true))
    return;
  world_.service.after(publish_after, [weak = weak_from_this()] {
    if (const auto self = weak.lock())
      self->publish();
  });
}

void Peers::publish() {
  assert(world_.service.on_thread());
  due_ = false;
  const Held held(lock_);
  for (const auto& [name, peer] : known_)
    peer->now_ = {};
  collect_();
  write(held);
}

void Peers::publish_last() noexcept {
  if (const Held held(lock_, std::try_to_lock); held.owns_lock())
    write(held);
}

PeerEntry Peers::entry_of(const Peer& peer) {
  PeerEntry entry = peer.who_;
  entry.level = peer.level_;
  for (size_t i = 0; i < observe::kPeerNumbers; ++i)
    entry.numbers[i] = peer.counts_[i].load(std::memory_order_relaxed);
  entry[PeerNumber::links] = static_cast<int64_t>(peer.now_.links);
  entry[PeerNumber::channels] = static_cast<int64_t>(peer.now_.channels);
  entry[PeerNumber::qps_bound] = static_cast<int64_t>(peer.now_.qps_bound);
  entry[PeerNumber::qps_proven] = static_cast<int64_t>(peer.now_.qps_proven);
  return entry;
}

void Peers::forget(const Peer& peer) {
  add(others_, entry_of(peer));
  known_.erase(PeerName(peer.name_));
}

// A free one, or that of who has no link and had the last one before all others of these.
bool Peers::find_slot(const std::shared_ptr<Peer>& peer, const Held& /*held*/) {
  const auto before = [](const auto& a, const auto& b) {
    if (!a || !b)
      return !a && b;
    return a->now_.links == 0 && (b->now_.links != 0 || a->last_ < b->last_);
  };
  auto& first = *std::ranges::min_element(slots_, before);
  if (first && !before(first, peer))
    return false;
  if (first)
    forget(*first);
  peer->slot_ = static_cast<size_t>(&first - slots_.data());
  first = peer;
  return true;
}

void Peers::write(const Held& held) {
  ++writes_;
  std::vector<std::shared_ptr<Peer>> without;
  for (const auto& [name, peer] : known_) {
    if (peer->changed_.exchange(false) || peer->now_.links != 0)
      peer->last_ = writes_;
    if (peer->slot_ == Peer::no_slot)
      without.push_back(peer);
  }
  PeerEntry last{};
  for (const auto& peer : without) {
    if (find_slot(peer, held))
      continue;
    if (peer->now_.links != 0)
      add(last, entry_of(*peer));
    else
      forget(*peer);
  }
  for (size_t i = 0; i < slots_.size() && slots_[i]; ++i)
    world_.peers.write(i, entry_of(*slots_[i]));
  add(last, others_);
  static constexpr char name[] = "others";
  memcpy(last.address, name, sizeof name);
  if (last.processes != 0 || summed_up_)
    world_.peers.write(observe::kOthers, last);
  summed_up_ = summed_up_ || last.processes != 0;
}

} // namespace adverb::link
