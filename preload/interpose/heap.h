// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Memory for all that adverb itself allocates, apart from the program's.
//
// A program that gives memory back may do so from within its allocator, with that one's lock held:
// free() and malloc_trim() of the C library do. Where a peer has leased it the call waits until the
// lease is back, and whoever sees to that must not wait for the same lock. So nothing that adverb
// allocates or frees comes from the program's heap (heap_new.cpp).
//
// Sizes up to 32 KiB come from pools of the standard library, whose memory is kept for the next of
// that size; larger ones are mappings of their own. One lock, held for the pools' bookkeeping.
// Never destroyed: threads may free until the process is gone.
#pragma once

#include "world/sync.h"

#include <cstddef>
#include <cstdint>
#include <memory_resource>

namespace adverb::interpose {

class Heap {
public:
  Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // `alignment`: a power of two. Null: no memory is left. Any thread.
  void* allocate(size_t bytes, size_t alignment) noexcept;
  void free(void* block) noexcept; // or null

  // In a fork child: if a thread of the parent's was at it, what there was is abandoned, and what
  // is freed of it is no longer looked at.
  void in_child() noexcept;

private:
  // Pages of the kernel's, for the pools.
  class Pages final : public std::pmr::memory_resource {
    void* do_allocate(size_t bytes, size_t alignment) override;
    void do_deallocate(void* from, size_t bytes, size_t alignment) override;
    bool do_is_equal(const memory_resource& other) const noexcept override {
      return this == &other;
    }
  };
  struct Pools {
    Pages pages;
    std::pmr::monotonic_buffer_resource room{64 << 10, &pages};
    std::pmr::unsynchronized_pool_resource sizes{{0, pooled_max}, &room};
  };
  // In front of each block.
  struct Front {
    uint64_t bytes;      // with what lies in front
    uint32_t offset;     // of the block
    uint32_t generation; // of the pools it is from
  };

  static constexpr size_t pooled_max = 32 << 10; // bytes
  void* take(size_t bytes) noexcept;
  void make() noexcept;

  QuickMutex lock_;
  uint32_t generation_ = 0;
  alignas(Pools) std::byte memory_[sizeof(Pools)];
  Pools* pools_ = nullptr; // in that memory
};

// The process's own.
Heap& process_heap() noexcept;

} // namespace adverb::interpose
