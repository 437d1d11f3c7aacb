// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/recalls.h"

#include <algorithm>
#include <utility>

namespace adverb::registration {

void LeasedRanges::add(uintptr_t from, uintptr_t to) {
  const std::lock_guard hold(lock_);
  ranges_.add(from, to - from);
  count_.store(ranges_.size());
}

void LeasedRanges::remove(uintptr_t from, uintptr_t to) noexcept {
  const std::lock_guard hold(lock_);
  ranges_.remove(from, to - from);
  count_.store(ranges_.size());
}

bool LeasedRanges::any(uintptr_t from, uint64_t bytes) const noexcept {
  if (count_.load() == 0)
    return false;
  const std::lock_guard hold(lock_);
  return ranges_.overlaps(from, bytes);
}

void Recalls::join(std::weak_ptr<Lessor> lessor) {
  const std::lock_guard hold(lock_);
  std::erase_if(lessors_, [](const auto& other) { return other.expired(); });
  lessors_.push_back(std::move(lessor));
}

// Whoever changes memory says so first and counts then; here it is the other way round, so one of
// the two sees the other.
bool Recalls::out(unsigned stripe) noexcept {
  stripes_[stripe].out.fetch_add(1);
  if (stripes_[stripe].changing.load() == 0)
    return true;
  back(stripe);
  return false;
}

void Recalls::back(unsigned stripe) noexcept {
  if (stripes_[stripe].out.fetch_sub(1) == 1 && stripes_[stripe].changing.load() != 0)
    hooks_.back();
}

void Recalls::begin_change(memory::Stripes where) noexcept {
  each(where, [](Stripe& stripe) { stripe.changing.fetch_add(1); });
  if (all_back(where))
    return;
  recalled_.fetch_or(where);
  hooks_.wake();
}

void Recalls::end_change(memory::Stripes where) noexcept {
  each(where, [](Stripe& stripe) { stripe.changing.fetch_sub(1); });
}

bool Recalls::all_back(memory::Stripes where) const noexcept {
  for (unsigned i = 0; i < memory::stripe_count; ++i)
    if ((where >> i & 1) != 0 && stripes_[i].out.load() != 0)
      return false;
  return true;
}

void Recalls::shed() noexcept {
  shed_.store(true);
  hooks_.wake();
}

void Recalls::views_changed() noexcept {
  views_changed_.store(true);
  hooks_.wake();
}

void Recalls::overdue(memory::Stripes where) noexcept {
  overdue_.fetch_or(where);
  hooks_.wake();
}

void Recalls::serve() {
  std::vector<std::shared_ptr<Lessor>> all;
  {
    const std::lock_guard hold(lock_);
    for (const auto& weak : lessors_)
      if (auto lessor = weak.lock())
        all.push_back(std::move(lessor));
  }
  const memory::Stripes late = overdue_.exchange(0);
  const memory::Stripes recalled = recalled_.exchange(0);
  const bool shed = shed_.exchange(false);
  const bool views = views_changed_.exchange(false);
  for (const auto& lessor : all) {
    if (late != 0) // those that were called back before
      lessor->give_up(late);
    if (recalled != 0)
      lessor->recall(recalled);
    if (shed)
      lessor->shed();
    if (views)
      lessor->views_changed();
  }
}

} // namespace adverb::registration
