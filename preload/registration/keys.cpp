// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/keys.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "provider/real.h"

#include <cerrno>
#include <sys/mman.h>

namespace adverb::registration {

using observe::Gauge;

constexpr size_t page_bytes = 4096;

Key::~Key() {
  pool_.give_back(value_);
}

std::shared_ptr<Key> KeyPool::take() {
  const std::lock_guard hold(lock_);
  if (!free_.empty()) {
    const uint32_t value = free_.front();
    free_.pop_front();
    return std::make_shared<Key>(*this, value);
  }
  // A value that a peer believes to be real stays reserved but unused; the bound keeps a provider
  // that hands out nothing else from looping here.
  for (int tries = 0; tries < 64; ++tries) {
    const auto value = reserve();
    if (!value)
      return nullptr;
    if (told_real_.contains(*value))
      continue;
    owned_.insert(*value);
    return std::make_shared<Key>(*this, *value);
  }
  errno = ENOMEM;
  return nullptr;
}

std::optional<uint32_t> KeyPool::reserve() {
  const provider::Inside inside;
  const auto& real = provider::real();
  if (pd_ == nullptr && (pd_ = real.ibv_alloc_pd(context_)) == nullptr)
    return std::nullopt;
  if (!no_windows_) {
    if (ibv_mw* window = ibv_alloc_mw(pd_, IBV_MW_TYPE_1); window != nullptr) {
      reserved_.push_back({.window = window});
      return window->rkey;
    }
    no_windows_ = true;
    observe::log_info("the device gives no more memory windows; further virtual keys are reserved "
                      "by one-page regions without rights");
  }
  void* page = mmap(nullptr, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    return std::nullopt;
  ibv_mr* region = real.ibv_reg_mr(pd_, page, page_bytes, 0);
  if (region == nullptr) {
    const int why = errno;
    munmap(page, page_bytes);
    errno = why;
    return std::nullopt;
  }
  observe::gauge_add(Gauge::pinned_bytes, page_bytes);
  reserved_.push_back({.region = region, .page = page});
  return region->rkey;
}

void KeyPool::give_back(uint32_t key) {
  const std::lock_guard hold(lock_);
  free_.push_back(key);
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
      provider::real().ibv_dereg_mr(r.region);
      munmap(r.page, page_bytes);
      observe::gauge_add(Gauge::pinned_bytes, -static_cast<int64_t>(page_bytes));
    }
  }
  reserved_.clear();
  free_.clear();
  owned_.clear();
  if (pd_ != nullptr)
    provider::real().ibv_dealloc_pd(pd_);
  pd_ = nullptr;
}

} // namespace adverb::registration
