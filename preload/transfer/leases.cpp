// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "transfer/leases.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <new>
#include <utility>

namespace adverb::transfer {

namespace {
constexpr size_t never_max = 4096; // keys; beyond, all are asked anew
constexpr uint32_t often = 16 * Touches::one;

uint32_t term_at(Leases::Time now) {
  return static_cast<uint32_t>(1 + (now / Leases::term));
}
} // namespace

Lease* Leases::find(Index& index, uint32_t key, uint64_t address, uint64_t length, unsigned right) {
  const auto covers = [&](const Lease& lease) {
    const uint64_t within = address - lease.start;
    return within < lease.bytes && length <= lease.bytes - within &&
           (lease.access & right) == right;
  };
  if (index.last_found != nullptr && index.last_found->key == key && covers(*index.last_found))
    return index.last_found;
  const auto at = index.by_key.find(key);
  if (at == index.by_key.end())
    return nullptr;
  const auto& [all, longest] = at->second;
  auto next = std::ranges::upper_bound(all, address, {}, &Lease::start);
  while (next != all.begin()) {
    Lease* const lease = *--next;
    if (covers(*lease))
      return index.last_found = lease;
    if (address - lease->start >= longest)
      break;
  }
  return nullptr;
}

Lease* Leases::find_view(uint32_t key, uint64_t address, uint64_t length, Time now) {
  Lease* const view = find(viewed_, key, address, length, IBV_ACCESS_REMOTE_READ);
  return view != nullptr && view->rests_until <= now ? view : nullptr;
}

bool Leases::views(uint32_t key, uint64_t address, uint64_t length, Time now) {
  const std::lock_guard hold(lock_);
  return find_view(key, address, length, now) != nullptr;
}

Lease* Leases::use_view(uint32_t key, uint64_t address, uint64_t length, Time now) {
  const std::lock_guard hold(lock_);
  Lease* const view = find_view(key, address, length, now);
  if (view != nullptr) {
    ++view->uses;
    view->touched = true;
  }
  return view;
}

void Leases::met(Lease& view, bool pages_away, Time now) noexcept {
  constexpr uint32_t sample = 64;
  const std::lock_guard hold(lock_);
  ++view.reads;
  view.missed += pages_away ? 1 : 0;
  if (view.reads < sample)
    return;
  if (view.missed > view.reads / 5)
    view.rests_until = now + rest;
  view.reads = view.missed = 0;
}

void Leases::distrust(Lease& view) noexcept {
  const std::lock_guard hold(lock_);
  if (view.gone)
    return;
  drop(view);
  try {
    given_up_.push_back(view.number);
    any_given_up_.store(true, std::memory_order_relaxed);
  } catch (
      const std::bad_alloc&) { // the owner takes it for one that is used, which costs it memory
  }
}

bool Leases::view_due(uint32_t key, Time now) {
  const std::lock_guard hold(lock_);
  if (view_asked_.size() >= never_max)
    view_asked_.clear();
  Asked& asked = view_asked_[key];
  if (now < asked.again)
    return false;
  asked = {now + asked_each, false};
  return true;
}

bool Leases::has_no_views(uint32_t key, Time now) {
  const std::lock_guard hold(lock_);
  const auto at = view_asked_.find(key);
  return at != view_asked_.end() && at->second.refused && now < at->second.again;
}

void Leases::no_views(uint32_t key, Time now) {
  const std::lock_guard hold(lock_);
  if (view_asked_.size() >= never_max)
    view_asked_.clear();
  view_asked_[key] = {now + refused_for, true};
}

bool Leases::covers(uint32_t key, uint64_t address, uint64_t length, unsigned right) {
  if (!any())
    return false;
  const std::lock_guard hold(lock_);
  return find(key, address, length, right) != nullptr;
}

Lease* Leases::use(uint32_t key, uint64_t address, uint64_t length, unsigned right) {
  const std::lock_guard hold(lock_);
  Lease* const lease = find(key, address, length, right);
  if (lease != nullptr) {
    ++lease->uses;
    count(*lease, address, length);
  }
  return lease;
}

bool Leases::name(uint32_t key, uint64_t address, uint64_t length, unsigned right) {
  if (!any())
    return false;
  const std::lock_guard hold(lock_);
  Lease* const lease = find(key, address, length, right);
  if (lease != nullptr)
    count(*lease, address, length);
  return lease != nullptr;
}

void Leases::count(Lease& lease, uint64_t address, uint64_t length) noexcept {
  lease.touched = true;
  if (address != lease.next && lease.heat < UINT32_MAX - Touches::one)
    lease.heat += Touches::one;
  lease.next = address + length;
}

void Leases::done(Lease& lease) noexcept {
  std::function<void()> tell;
  {
    const std::lock_guard hold(lock_);
    assert(lease.uses != 0);
    --lease.uses;
    if (!lease.gone)
      return;
    reap();
    if (back_ && uses_of_gone() == 0)
      tell = std::exchange(back_, nullptr);
  }
  if (tell)
    tell();
}

size_t Leases::uses_of_gone() const noexcept {
  size_t uses = 0;
  for (const auto& lease : leases_)
    uses += lease.gone ? lease.uses : 0;
  return uses;
}

// Nobody finds it any more.
void Leases::drop(Lease& lease) noexcept {
  Index& index = index_of(lease);
  const auto at = index.by_key.find(lease.key);
  assert(!lease.gone && at != index.by_key.end());
  std::erase(at->second.all, &lease);
  if (at->second.all.empty())
    index.by_key.erase(at);
  lease.gone = true;
  index.last_found = index.last_found == &lease ? nullptr : index.last_found;
  if (lease.is_view()) {
    live_views_.fetch_sub(1);
    return;
  }
  standing_[lease.place] = standing_.back();
  standing_[lease.place]->place = lease.place;
  standing_.pop_back();
  live_.fetch_sub(1);
}

void Leases::reap() noexcept {
  std::erase_if(leases_, [](const Lease& lease) { return lease.gone && lease.uses == 0; });
}

bool Leases::wanted(uint32_t key, uint64_t address, uint64_t length, Time now) {
  const std::lock_guard hold(lock_);
  if (length > longest || never_.contains(key))
    return false;
  const Touches::Part& touched = touches_.touch(key, address, length, term_at(now));
  // A short one that lies in two parts would be leased both, which others of their own may be by
  // then: the next one may lie within.
  constexpr uint64_t part = uint64_t{1} << Touches::part_bits;
  const bool in_two = (address ^ (address + length - 1)) >= part && length <= part / 2;
  if (touched.count < (in_two ? often : Touches::twice) || touched.asked == touched.term)
    return false;
  if (!is_full(now))
    return true;
  std::array<Lease*, looked_at> found{};
  given_up_.reserve(given_up_.size() + looked_at); // ask() needs no memory
  if (colder(length, touched.count, found) != 0)
    return true;
  hand_ += looked_at; // others next time
  return false;
}

Leases::Ask Leases::ask(uint32_t key, uint64_t address, uint64_t length, Time now) noexcept {
  const std::lock_guard hold(lock_);
  Ask ask{.heat = Touches::twice};
  if (Touches::Part* const touched = touches_.find(key, address)) {
    touched->asked = term_at(now);
    ask.heat = touched->count;
  }
  std::array<Lease*, looked_at> found{};
  const bool makes_room = is_full(now) && !std::exchange(tries_, false);
  const size_t making_room = makes_room ? colder(length, ask.heat, found) : 0;
  for (Lease* const lease : std::span(found).first(making_room)) {
    if (ask.instead_of == 0)
      ask.instead_of = lease->number;
    else if (given_up_.size() < given_up_.capacity())
      given_up_.push_back(lease->number);
    else
      break;
    drop(*lease);
  }
  any_given_up_.store(!given_up_.empty(), std::memory_order_relaxed);
  hand_ += makes_room ? looked_at : 0;
  reap();
  return ask;
}

// Who has nothing that could give way asks once a term: others may have given back meanwhile.
bool Leases::is_full(Time now) noexcept {
  full_ = full_ && (!standing_.empty() || full_in_ == term_at(now));
  return full_;
}

void Leases::no_room(uint32_t key, uint64_t address, Time now) noexcept {
  const std::lock_guard hold(lock_);
  full_ = true;
  full_in_ = term_at(now);
  if (Touches::Part* const touched = touches_.find(key, address))
    touched->asked = 0; // once more, in place of another
}

void Leases::take_given_up(std::vector<uint32_t>& to) {
  if (!any_given_up_.load(std::memory_order_relaxed))
    return;
  const std::lock_guard hold(lock_);
  to.insert(to.end(), given_up_.begin(), given_up_.end());
  given_up_.clear();
  any_given_up_.store(false, std::memory_order_relaxed);
}

// Those that are to make room for so many bytes of that heat, and how many; 0: nothing that would
// do is colder. A few are looked at each time, so that it costs the same however many there are.
size_t Leases::colder(uint64_t bytes, uint32_t heat, std::span<Lease*> found) const noexcept {
  const size_t looked = std::min(found.size(), standing_.size());
  size_t idle = 0;
  for (size_t i = 0; i < looked; ++i)
    if (Lease* const lease = standing_[(hand_ + i) % standing_.size()]; lease->uses == 0)
      found[idle++] = lease;
  std::ranges::sort(found.first(idle), {}, &Lease::heat);
  uint64_t room = 0;
  uint64_t colds = 0;
  for (size_t i = 0; i < idle; ++i) {
    room += found[i]->bytes;
    colds += found[i]->heat;
    if (colds + (colds / 4) + Touches::one > heat)
      return 0;
    if (room >= bytes)
      return i + 1;
  }
  return 0;
}

bool Leases::add(const Lease& lease) {
  const std::lock_guard hold(lock_);
  if (leases_.size() >= leases_max || std::ranges::any_of(leases_, [&](const Lease& other) {
        return other.number == lease.number;
      }))
    return false;
  auto& [all, longest] = index_of(lease).by_key[lease.key];
  all.reserve(all.size() + 1); // what needs memory comes first
  standing_.reserve(standing_.size() + 1);
  leases_.push_back(lease);
  Lease* const mine = &leases_.back();
  mine->touched = true;
  mine->heat = std::max(mine->heat, Touches::twice);
  all.insert(std::ranges::upper_bound(all, mine->start, {}, &Lease::start), mine);
  longest = std::max(longest, mine->bytes);
  if (mine->is_view()) {
    live_views_.fetch_add(1);
    return true;
  }
  mine->place = standing_.size();
  standing_.push_back(mine);
  live_.fetch_add(1);
  return true;
}

void Leases::refused(uint32_t key) {
  const std::lock_guard hold(lock_);
  if (never_.size() >= never_max)
    never_.clear();
  never_[key] = true;
}

size_t Leases::forget(std::span<const uint32_t> keys) {
  const std::lock_guard hold(lock_);
  size_t ended = 0;
  for (const uint32_t key : keys) {
    never_.erase(key);
    view_asked_.erase(key);
    for (auto& lease : leases_)
      if (!lease.gone && lease.key == key) {
        drop(lease);
        ++ended;
      }
  }
  reap();
  return ended;
}

size_t Leases::recall(std::span<const uint32_t> numbers, std::function<void()> back) {
  const std::lock_guard hold(lock_);
  for (auto& lease : leases_)
    if (!lease.gone && std::ranges::find(numbers, lease.number) != numbers.end())
      drop(lease);
  reap();
  const size_t uses = uses_of_gone();
  back_ = uses != 0 ? std::move(back) : nullptr;
  return uses;
}

bool Leases::all_back() const {
  const std::lock_guard hold(lock_);
  return uses_of_gone() == 0;
}

std::vector<uint32_t> Leases::unused() {
  const std::lock_guard hold(lock_);
  std::vector<uint32_t> numbers;
  for (auto& lease : leases_) {
    if (!lease.gone && !lease.touched && lease.uses == 0) {
      numbers.push_back(lease.number);
      drop(lease);
    }
    lease.touched = false;
    lease.heat /= 2;
  }
  reap();
  tries_ = true;
  full_ = full_ && numbers.empty();
  return numbers;
}

void Leases::close() {
  const std::lock_guard hold(lock_);
  for (auto& lease : leases_)
    if (!lease.gone)
      drop(lease);
  back_ = nullptr;
  reap();
}

} // namespace adverb::transfer
