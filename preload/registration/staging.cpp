// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/staging.h"
#include "observe/counters.h"
#include "provider/real.h"
#include "registration/budget.h"

#include <algorithm>
#include <atomic>
#include <sys/mman.h>

namespace adverb::registration {

using observe::Counter;
using observe::Gauge;

struct Slab {
  Staging* owner = nullptr;
  std::byte* memory = nullptr;
  ibv_mr* mr = nullptr;
  size_t block_bytes = 0;
  std::vector<uint16_t> free; // indices of free blocks, last in first out: warm in the cache

  bool empty() const { return free.size() == Staging::slab_bytes / block_bytes; }

  ~Slab() {
    if (mr != nullptr) {
      const provider::Inside inside;
      provider::real().ibv_dereg_mr(mr);
      observe::gauge_add(Gauge::pinned_bytes, -static_cast<int64_t>(Staging::slab_bytes));
    }
    if (memory != nullptr)
      munmap(memory, Staging::slab_bytes);
    staging_budget().give(Staging::slab_bytes);
  }
};

namespace {

// Every Staging of the process; its lock is taken under one Staging's and only tries the others'.
struct All {
  std::mutex lock;
  std::vector<Staging*> stagings;
};
std::atomic<All*> instance{nullptr};

All& all() {
  All* now = instance.load(std::memory_order_acquire);
  if (now != nullptr)
    return *now;
  auto fresh = std::make_unique<All>();
  return instance.compare_exchange_strong(now, fresh.get()) ? *fresh.release() : *now;
}

} // namespace

void Staging::after_fork_child() {
  instance.store(nullptr); // leaked: the regions in it are the parent's
}

Staging::Staging(ibv_pd* pd) : pd_(pd) {
  const std::lock_guard hold(all().lock);
  all().stagings.push_back(this);
}

Staging::~Staging() {
  const std::lock_guard hold(all().lock);
  std::erase(all().stagings, this);
}

Slab* Staging::new_slab(size_t block_bytes) {
  if (!staging_budget().take(slab_bytes) &&
      ((!drop_an_empty_slab() && !drop_an_empty_slab_elsewhere()) ||
       !staging_budget().take(slab_bytes)))
    return nullptr;
  auto slab = std::make_unique<Slab>();
  slab->owner = this;
  slab->block_bytes = block_bytes;
  void* memory =
      mmap(nullptr, slab_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return nullptr;
  slab->memory = static_cast<std::byte*>(memory);
  // A forked child must not turn our pages copy-on-write under the device.
  madvise(memory, slab_bytes, MADV_DONTFORK);
  const provider::Inside inside;
  slab->mr = provider::real().ibv_reg_mr(pd_, memory, slab_bytes, IBV_ACCESS_LOCAL_WRITE);
  if (slab->mr == nullptr)
    return nullptr;
  observe::gauge_add(Gauge::pinned_bytes, static_cast<int64_t>(slab_bytes));
  const auto blocks = slab_bytes / block_bytes;
  slab->free.reserve(blocks);
  for (size_t i = blocks; i-- > 0;)
    slab->free.push_back(static_cast<uint16_t>(i));
  const auto at = std::find(sizes.begin(), sizes.end(), block_bytes) - sizes.begin();
  slabs_[static_cast<size_t>(at)].push_back(std::move(slab));
  return slabs_[static_cast<size_t>(at)].back().get();
}

bool Staging::drop_an_empty_slab() {
  for (auto& of_size : slabs_)
    for (auto it = of_size.begin(); it != of_size.end(); ++it)
      if ((*it)->empty()) {
        of_size.erase(it);
        return true;
      }
  return false;
}

bool Staging::drop_an_empty_slab_elsewhere() {
  const std::lock_guard hold(all().lock);
  for (Staging* other : all().stagings) {
    if (other == this || !other->lock_.try_lock())
      continue;
    const std::lock_guard theirs(other->lock_, std::adopt_lock);
    if (other->drop_an_empty_slab())
      return true;
  }
  return false;
}

Block Staging::take(size_t bytes) {
  const auto size = std::lower_bound(sizes.begin(), sizes.end(), bytes);
  if (size == sizes.end())
    return {};
  const std::lock_guard hold(lock_);
  if (closed_)
    return {};
  auto& of_size = slabs_[static_cast<size_t>(size - sizes.begin())];
  Slab* slab = nullptr;
  for (auto it = of_size.rbegin(); it != of_size.rend() && slab == nullptr; ++it)
    if (!(*it)->free.empty())
      slab = it->get();
  if (slab == nullptr && (slab = new_slab(*size)) == nullptr) {
    observe::count(Counter::staging_full);
    return {};
  }
  const uint16_t index = slab->free.back();
  slab->free.pop_back();
  return {slab->memory + index * slab->block_bytes, slab->mr->lkey, slab};
}

void Staging::close() noexcept {
  const std::lock_guard hold(lock_);
  closed_ = true;
  while (drop_an_empty_slab()) {
  }
}

void Staging::reopen() noexcept {
  const std::lock_guard hold(lock_);
  closed_ = false;
}

void Staging::give(Block block) noexcept {
  const std::lock_guard hold(lock_);
  const auto offset = static_cast<size_t>(block.data - block.slab->memory);
  block.slab->free.push_back(static_cast<uint16_t>(offset / block.slab->block_bytes));
}

} // namespace adverb::registration
