// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "transfer/lessor.h"
#include "registration/budget.h"
#include "registration/regions.h"
#include "transfer/target.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <mutex>
#include <utility>
#include <vector>

namespace adverb::transfer {

using observe::Counter;
using registration::Regions;

Lessor::Lessor(World& world, std::shared_ptr<link::Channel> channel, std::shared_ptr<ToldKeys> told)
    : world_(world), channel_(std::move(channel)), told_(std::move(told)) {}

void Lessor::count_in() {
  if (counts_)
    return;
  world_.service.after(asks_again, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self)
      return;
    const std::lock_guard progress(self->channel_->progress().lock());
    if (self->leases_.empty())
      self->count_out();
  });
  world_.recalls().began();
  counts_ = true;
}

void Lessor::count_out() noexcept {
  if (std::exchange(counts_, false))
    world_.recalls().ended();
}

uint64_t Lessor::share() const {
  const uint32_t others = world_.recalls().sharers() - (counts_ ? 1 : 0);
  return world_.budgets().leasable_bytes() / (1 + others);
}

Status Lessor::may_give(uint32_t key, uint64_t address, uint64_t length, uint64_t bytes) {
  assert(channel_->progress().lock().held());
  sweep();
  const auto has = [&](const auto& entry) {
    const auto& grant = *entry.second.grant;
    return !grant.is_view() && grant.key->value() == key && address - grant.start < grant.bytes &&
           length <= grant.bytes - (address - grant.start);
  };
  if (recalled_ != 0 || world_.clock.now() < late_until_ || std::ranges::any_of(leases_, has))
    return Status::fault;
  world_.budgets().look_again();
  count_in();
  const uint64_t most = share();
  if (bytes_ > most) // it has become less
    world_.recalls().shed();
  if (leases_.size() >= leases_max || bytes_ + bytes > most)
    return Status::full;
  if (world_.budgets().has_leasable(bytes))
    return Status::ok;
  world_.recalls().shed();
  return Status::fault;
}

void Lessor::join() {
  if (joined_)
    return;
  world_.recalls().join(weak_from_this());
  joined_ = true;
}

uint32_t Lessor::new_number() noexcept {
  while (++next_ == 0 || leases_.contains(next_)) {
  }
  return next_;
}

// It is listed before it counts as out, and looked at once it does: what changes before is seen
// there, what changes later calls it back.
uint32_t Lessor::give(std::shared_ptr<registration::Grant> lease) {
  assert(channel_->progress().lock().held());
  Leases::iterator at;
  try {
    join();
    const unsigned stripe = memory::stripe_of(lease->from); // its region may have ended since
    at = leases_.emplace(new_number(), Lease{lease, stripe}).first;
    bytes_ += lease->charged;
    at->second.counted = world_.recalls().out(stripe);
  } catch (...) {
    Regions::revoke(lease);
    throw;
  }
  const auto& grant = *at->second.grant;
  if (!at->second.counted || recalled_ != 0 || !grant.by->is_good(grant)) {
    end(at);
    return 0;
  }
  world_.counters.count(Counter::responder_leases);
  return at->first;
}

uint32_t Lessor::give_view(std::shared_ptr<registration::Grant> view) {
  assert(channel_->progress().lock().held());
  sweep();
  const auto is_the_same = [&](const auto& entry) {
    return entry.second.grant->is_view() && entry.second.grant->rkey == view->rkey;
  };
  if (leases_.size() >= leases_max || std::ranges::any_of(leases_, is_the_same)) {
    Regions::revoke(view);
    return 0;
  }
  Leases::iterator at;
  try {
    join();
    at = leases_.emplace(new_number(), Lease{.grant = view, .counted = false}).first;
  } catch (...) {
    Regions::revoke(view);
    throw;
  }
  // Its region may have changed since it was made, which told of those that are listed.
  if (!view->by->is_good(*view)) {
    end(at);
    return 0;
  }
  world_.counters.count(Counter::responder_views);
  return at->first;
}

void Lessor::end(Leases::iterator at) {
  const Lease lease = std::move(at->second);
  leases_.erase(at);
  recalled_ -= lease.recalled ? 1 : 0;
  bytes_ -= lease.grant->charged;
  // In this order: nobody uses it any more, and to deregister it may need a lock of the allocator
  // that whoever waits for it holds.
  if (lease.counted)
    world_.recalls().back(lease.stripe);
  Regions::revoke(lease.grant);
  if (leases_.empty())
    count_out();
}

void Lessor::yielded(uint32_t number) {
  assert(channel_->progress().lock().held());
  if (const auto at = leases_.find(number); at != leases_.end())
    end(at);
}

void Lessor::returned(std::span<const uint32_t> numbers) {
  for (const uint32_t number : numbers)
    yielded(number);
}

void Lessor::sweep() {
  assert(channel_->progress().lock().held());
  for (auto next = leases_.begin(); next != leases_.end();)
    if (const auto at = next++; at->second.grant->by->is_over(*at->second.grant))
      end(at);
}

void Lessor::call_back(std::span<const uint32_t> numbers) {
  if (numbers.empty())
    return;
  told_->recall(numbers);
  for (const uint32_t number : numbers)
    leases_.at(number).recalled = true;
  recalled_ += numbers.size();
  world_.counters.count(Counter::recalls, numbers.size());
}

void Lessor::recall(memory::Stripes where) {
  const std::lock_guard progress(channel_->progress().lock());
  std::vector<uint32_t> numbers;
  for (const auto& [number, lease] : leases_)
    if (!lease.grant->is_view() && !lease.recalled && (where >> lease.stripe & 1) != 0)
      numbers.push_back(number);
  call_back(numbers);
}

void Lessor::shed() {
  const std::lock_guard progress(channel_->progress().lock());
  if (recalled_ != 0)
    return;
  std::vector<uint32_t> numbers;
  uint64_t left = bytes_;
  for (auto at = leases_.begin(); at != leases_.end() && left > share(); ++at) {
    if (at->second.grant->is_view())
      continue;
    numbers.push_back(at->first);
    left -= at->second.grant->charged;
  }
  call_back(numbers);
}

void Lessor::views_changed() {
  const std::lock_guard progress(channel_->progress().lock());
  std::vector<uint32_t> numbers;
  for (const auto& [number, lease] : leases_)
    if (lease.grant->is_view() && !lease.recalled && !lease.grant->by->is_good(*lease.grant))
      numbers.push_back(number);
  call_back(numbers);
}

void Lessor::give_up(memory::Stripes where) {
  const std::lock_guard progress(channel_->progress().lock());
  uint32_t late = 0;
  for (auto& [number, lease] : leases_) {
    if (!lease.recalled || (where >> lease.stripe & 1) == 0 || !std::exchange(lease.counted, false))
      continue;
    ++late;
    world_.recalls().back(lease.stripe);
  }
  if (late == 0)
    return;
  late_until_ = world_.clock.now() + late_pause;
  if (world_.log.every("recall-overdue", 10))
    world_.log.warn("a peer has not given back {} leases in time: the calls that waited for them "
                    "go on, and the peer's requests under way reach the old pages; a longer "
                    "\"recall_wait\" in the policy gives peers more time",
                    late);
}

std::shared_ptr<LeftLeases> Lessor::close() {
  assert(channel_->progress().lock().held());
  count_out();
  if (leases_.empty())
    return nullptr;
  std::vector<std::shared_ptr<registration::Grant>> all;
  for (auto& [number, lease] : std::exchange(leases_, {})) {
    all.push_back(lease.grant);
    if (lease.counted)
      world_.recalls().back(lease.stripe);
  }
  recalled_ = 0;
  bytes_ = 0;
  auto left = std::make_shared<LeftLeases>(std::move(all));
  world_.service.after(outlived, [weak = std::weak_ptr(left)] {
    if (const auto late = weak.lock())
      late->end();
  });
  return left;
}

} // namespace adverb::transfer
