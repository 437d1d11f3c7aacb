// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/keys.h"
#include "memory/own.h"
#include "world/world.h"

#include <cerrno>
#include <sys/mman.h>

namespace adverb::registration {

using observe::Gauge;

constexpr size_t page_bytes = 4096;

Key::~Key() {
  const std::lock_guard hold(home_->lock);
  home_->keys.splice(home_->keys.end(), place_);
}

// The oldest of the free keys.
bool KeyPool::reuse(std::list<uint32_t>& place, const Held& /*held*/) {
  const std::lock_guard hold(free_->lock);
  if (free_->keys.empty())
    return false;
  place.splice(place.end(), free_->keys, free_->keys.begin());
  return true;
}

int KeyPool::take(std::shared_ptr<Key>& key) {
  const Held held(lock_);
  auto fresh = std::make_shared<Key>(free_);
  std::list<uint32_t> place;
  if (reuse(place, held)) {
    fresh->take(place);
    key = std::move(fresh);
    return 0;
  }
  uint32_t& value = place.emplace_back();
  // A value that a peer believes to be real stays reserved but unused; the bound keeps a provider
  // that hands out nothing else from looping here.
  for (int tries = 0; tries < 64; ++tries) {
    if (const int rc = reserve(value, held); rc != 0)
      return rc;
    if (told_real_.contains(value))
      continue;
    owned_.insert(value);
    fresh->take(place);
    key = std::move(fresh);
    return 0;
  }
  return ENOMEM;
}

// A new key of the device's that nothing is ever reached by.
int KeyPool::reserve(uint32_t& key, const Held& /*held*/) {
  const provider::Inside inside;
  const auto& real = world_.provider.real();
  if (pd_ == nullptr && (pd_ = real.ibv_alloc_pd(context_)) == nullptr)
    return provider::failure();
  Reserved& fresh = reserved_.emplace_back(); // of nothing yet
  if (!no_windows_) {
    if (fresh.window = ibv_alloc_mw(pd_, IBV_MW_TYPE_1); fresh.window != nullptr) {
      key = fresh.window->rkey;
      return 0;
    }
    no_windows_ = true;
    world_.log.info("the device gives no more memory windows; further virtual keys are reserved "
                    "by one-page regions without rights");
  }
  void* page = memory::map_own(page_bytes, PROT_READ);
  if (page == MAP_FAILED) {
    const int rc = errno;
    reserved_.pop_back();
    return rc;
  }
  fresh.region = real.ibv_reg_mr(pd_, page, page_bytes, 0);
  if (fresh.region == nullptr) {
    const int rc = provider::failure();
    munmap(page, page_bytes);
    reserved_.pop_back();
    return rc;
  }
  fresh.page = page;
  world_.counters.gauge_add(Gauge::pinned_bytes, page_bytes);
  key = fresh.region->rkey;
  return 0;
}

void KeyPool::in_child() {
  renew(lock_);
  renew(free_->lock);
}

bool KeyPool::owns(uint32_t key) const {
  const std::lock_guard hold(lock_);
  return owned_.contains(key);
}

void KeyPool::told_real(uint32_t key) {
  const std::lock_guard hold(lock_);
  told_real_.insert(key);
}

void KeyPool::close() {
  const provider::Inside inside;
  const std::lock_guard hold(lock_);
  for (auto& r : reserved_) {
    if (r.window != nullptr)
      ibv_dealloc_mw(r.window);
    if (r.region != nullptr) {
      world_.provider.real().ibv_dereg_mr(r.region);
      munmap(r.page, page_bytes);
      world_.counters.gauge_add(Gauge::pinned_bytes, -static_cast<int64_t>(page_bytes));
    }
  }
  reserved_.clear();
  free_ = std::make_shared<FreeKeys>(); // late ones come back to where nobody takes any
  owned_.clear();
  if (pd_ != nullptr)
    world_.provider.real().ibv_dealloc_pd(pd_);
  pd_ = nullptr;
}

} // namespace adverb::registration
