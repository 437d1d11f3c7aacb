// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/staging.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <sys/mman.h>

namespace adverb::registration {

using observe::Counter;
using observe::Gauge;

struct Slab {
  World& world;
  std::byte* memory = nullptr;
  ibv_mr* mr = nullptr;
  size_t block_bytes = 0;
  std::vector<uint16_t> free; // indices of free blocks, last in first out: warm in the cache

  bool empty() const { return free.size() == Staging::slab_bytes / block_bytes; }

  explicit Slab(World& of) : world(of) {}
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab() {
    if (mr != nullptr) {
      const provider::Inside inside;
      world.provider.real().ibv_dereg_mr(mr);
      world.counters.gauge_add(Gauge::pinned_bytes, -static_cast<int64_t>(Staging::slab_bytes));
    }
    if (memory != nullptr)
      munmap(memory, Staging::slab_bytes);
    world.budgets().give_staging(Staging::slab_bytes);
  }
};

Staging::Staging(World& world, ibv_pd* pd) : world_(world), budgets_(world.budgets()), pd_(pd) {
  budgets_.enter(*this);
}

Staging::~Staging() {
  budgets_.leave(*this);
}

// Null: the budget is used up, or the device registers no more.
Slab* Staging::new_slab(size_t block_bytes, const Held& held) {
  if (!budgets_.take_staging(slab_bytes) &&
      ((!drop_an_empty_slab(held) && !budgets_.reclaim_slab(*this)) ||
       !budgets_.take_staging(slab_bytes)))
    return nullptr;
  std::unique_ptr<Slab> slab(new (std::nothrow) Slab(world_));
  if (slab == nullptr) {
    budgets_.give_staging(slab_bytes);
    return nullptr;
  }
  slab->block_bytes = block_bytes;
  void* memory =
      mmap(nullptr, slab_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return nullptr;
  slab->memory = static_cast<std::byte*>(memory);
  // A forked child must not turn our pages copy-on-write under the device.
  madvise(memory, slab_bytes, MADV_DONTFORK);
  const provider::Inside inside;
  slab->mr = budgets_.register_making_room(
      [&] {
        return world_.provider.real().ibv_reg_mr(pd_, memory, slab_bytes, IBV_ACCESS_LOCAL_WRITE);
      },
      this);
  if (slab->mr == nullptr)
    return nullptr;
  world_.counters.gauge_add(Gauge::pinned_bytes, static_cast<int64_t>(slab_bytes));
  const auto blocks = slab_bytes / block_bytes;
  slab->free.reserve(blocks);
  for (size_t i = blocks; i-- > 0;)
    slab->free.push_back(static_cast<uint16_t>(i));
  const auto at = std::find(sizes.begin(), sizes.end(), block_bytes) - sizes.begin();
  slabs_[static_cast<size_t>(at)].push_back(std::move(slab));
  return slabs_[static_cast<size_t>(at)].back().get();
}

bool Staging::drop_an_empty_slab(const Held& /*held*/) noexcept {
  for (auto& of_size : slabs_)
    for (auto it = of_size.begin(); it != of_size.end(); ++it)
      if ((*it)->empty()) {
        of_size.erase(it);
        return true;
      }
  return false;
}

bool Staging::try_give_back() noexcept {
  if (!lock_.try_lock())
    return false;
  const Held held(lock_, std::adopt_lock);
  return drop_an_empty_slab(held);
}

Block Staging::take(size_t bytes) {
  const auto size = std::lower_bound(sizes.begin(), sizes.end(), bytes);
  if (size == sizes.end())
    return {};
  const Held held(lock_);
  if (closed_)
    return {};
  auto& of_size = slabs_[static_cast<size_t>(size - sizes.begin())];
  Slab* slab = nullptr;
  for (auto it = of_size.rbegin(); it != of_size.rend() && slab == nullptr; ++it)
    if (!(*it)->free.empty())
      slab = it->get();
  if (slab == nullptr && (slab = new_slab(*size, held)) == nullptr) {
    world_.counters.count(Counter::staging_full);
    return {};
  }
  const uint16_t index = slab->free.back();
  slab->free.pop_back();
  return {slab->memory + index * slab->block_bytes, slab->mr->lkey, slab};
}

Block Staging::take_to_keep(size_t bytes) noexcept {
  try {
    return budgets_.staging_is_ample() ? take(bytes) : Block{};
  } catch (const std::bad_alloc&) {
    return {};
  }
}

void Staging::close() noexcept {
  const Held held(lock_);
  closed_ = true;
  while (drop_an_empty_slab(held)) {
  }
}

void Staging::reopen() noexcept {
  const Held held(lock_);
  closed_ = false;
}

void Staging::give(Block block) noexcept {
  const Held held(lock_);
  const auto offset = static_cast<size_t>(block.data - block.slab->memory);
  assert(offset < slab_bytes && !block.slab->empty());
  block.slab->free.push_back(static_cast<uint16_t>(offset / block.slab->block_bytes));
}

} // namespace adverb::registration
