// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/staging.h"
#include "memory/own.h"
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
  const size_t bytes;
  const size_t block_bytes;
  std::vector<uint16_t> free; // indices of free blocks, last in first out: warm in the cache

  bool empty() const { return free.size() == bytes / block_bytes; }

  Slab(World& of, size_t bytes_, size_t block_bytes_)
      : world(of), bytes(bytes_), block_bytes(block_bytes_) {}
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab() {
    if (mr != nullptr) {
      const provider::Inside inside;
      world.provider.real().ibv_dereg_mr(mr);
      world.counters.gauge_add(Gauge::pinned_bytes, -static_cast<int64_t>(bytes));
    }
    if (memory != nullptr)
      munmap(memory, bytes);
    world.budgets().give_staging(bytes);
  }
};

Staging::Staging(World& world, ibv_pd* pd) : world_(world), budgets_(world.budgets()), pd_(pd) {
  budgets_.enter(*this);
}

Staging::~Staging() {
  budgets_.leave(*this);
}

bool Staging::make_room(size_t bytes, const Held& held) {
  if (bytes > budgets_.queues_staging()) // and nothing goes in vain
    return false;
  while (!budgets_.take_staging(bytes))
    if (!drop_an_empty_slab(held) && !budgets_.reclaim_slab(*this))
      return false;
  return true;
}

// Null: the budget is used up, or the device registers no more.
Slab* Staging::new_slab(Slabs& among, size_t bytes, size_t block_bytes, const Held& held) {
  if (!make_room(bytes, held))
    return nullptr;
  std::unique_ptr<Slab> slab(new (std::nothrow) Slab(world_, bytes, block_bytes));
  if (slab == nullptr) {
    budgets_.give_staging(bytes);
    return nullptr;
  }
  void* memory = memory::map_own(bytes, PROT_READ | PROT_WRITE);
  if (memory == MAP_FAILED)
    return nullptr;
  slab->memory = static_cast<std::byte*>(memory);
  // A forked child must not turn our pages copy-on-write under the device.
  madvise(memory, bytes, MADV_DONTFORK);
  const provider::Inside inside;
  slab->mr = budgets_.register_making_room(
      [&] { return world_.provider.real().ibv_reg_mr(pd_, memory, bytes, IBV_ACCESS_LOCAL_WRITE); },
      this);
  if (slab->mr == nullptr)
    return nullptr;
  world_.counters.gauge_add(Gauge::pinned_bytes, static_cast<int64_t>(bytes));
  const auto blocks = bytes / block_bytes;
  slab->free.reserve(blocks);
  for (size_t i = blocks; i-- > 0;)
    slab->free.push_back(static_cast<uint16_t>(i));
  among.push_back(std::move(slab));
  return among.back().get();
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
  constexpr size_t page = 4096;
  const auto size = std::lower_bound(sizes.begin(), sizes.end(), bytes);
  const bool large = size == sizes.end();
  const Held held(lock_);
  if (closed_)
    return {};
  Slabs& of_size = slabs_[static_cast<size_t>(size - sizes.begin())];
  Slab* slab = nullptr;
  for (auto it = of_size.rbegin(); it != of_size.rend() && slab == nullptr; ++it)
    if (!(*it)->free.empty() && (*it)->block_bytes >= bytes)
      slab = it->get();
  if (slab == nullptr) {
    const size_t block_bytes = large ? (bytes + page - 1) & ~(page - 1) : *size;
    slab = new_slab(of_size, large ? block_bytes : slab_bytes, block_bytes, held);
  }
  if (slab == nullptr) {
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
  assert(offset < block.slab->bytes && !block.slab->empty());
  block.slab->free.push_back(static_cast<uint16_t>(offset / block.slab->block_bytes));
}

} // namespace adverb::registration
