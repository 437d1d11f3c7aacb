// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "interpose/heap.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <sys/mman.h>

// Of AddressSanitizer's runtime, where the program brings it: what the program's heap holds for
// adverb (libibverbs's contexts among that) is referred to from here alone, and would be a leak.
extern "C" [[gnu::weak]] void __lsan_register_root_region(const void* from, size_t bytes);
extern "C" [[gnu::weak]] void __lsan_unregister_root_region(const void* from, size_t bytes);

namespace adverb::interpose {

namespace {

constexpr size_t front_alignment = 16;

void* map(size_t bytes) noexcept {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    return nullptr;
  if (__lsan_register_root_region != nullptr)
    __lsan_register_root_region(at, bytes);
  return at;
}

void unmap(void* from, size_t bytes) noexcept {
  if (__lsan_unregister_root_region != nullptr)
    __lsan_unregister_root_region(from, bytes);
  munmap(from, bytes);
}

} // namespace

void* Heap::Pages::do_allocate(size_t bytes, size_t /*alignment*/) {
  if (void* const at = map(bytes))
    return at;
  throw std::bad_alloc();
}

void Heap::Pages::do_deallocate(void* from, size_t bytes, size_t /*alignment*/) {
  unmap(from, bytes);
}

Heap::Heap() {
  make();
}

void Heap::make() noexcept {
  pools_ = new (memory_) Pools;
  ++generation_;
}

// With room for what lies in front. Null: no memory is left.
void* Heap::take(size_t bytes) noexcept {
  if (bytes > pooled_max)
    return map(bytes);
  try {
    const std::lock_guard hold(lock_);
    return pools_->sizes.allocate(bytes, front_alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void* Heap::allocate(size_t bytes, size_t alignment) noexcept {
  static_assert(sizeof(Front) == front_alignment);
  const size_t room = alignment <= front_alignment ? sizeof(Front) : sizeof(Front) + alignment;
  if (bytes > PTRDIFF_MAX - 2 * room)
    return nullptr;
  // The standard library's pools align a size of 24 to 8 bytes, whatever they are asked for.
  const size_t all = std::max<size_t>((bytes + room + front_alignment - 1) & ~(front_alignment - 1),
                                      2 * front_alignment);
  void* const from = take(all);
  if (from == nullptr)
    return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(from);
  const size_t grain = std::max(alignment, front_alignment);
  const uintptr_t block = (begin + sizeof(Front) + grain - 1) & ~(grain - 1);
  new (reinterpret_cast<void*>(block - sizeof(Front)))
      Front{all, static_cast<uint32_t>(block - begin), generation_};
  return reinterpret_cast<void*>(block);
}

void Heap::free(void* block) noexcept {
  if (block == nullptr)
    return;
  auto* const at = static_cast<std::byte*>(block);
  const Front front = *reinterpret_cast<const Front*>(at - sizeof(Front));
  std::byte* const from = at - front.offset;
  if (front.bytes > pooled_max) {
    unmap(from, front.bytes);
    return;
  }
  const std::lock_guard hold(lock_);
  if (front.generation == generation_)
    pools_->sizes.deallocate(from, front.bytes, front_alignment);
}

void Heap::in_child() noexcept {
  const bool was_free = lock_.try_lock();
  renew(lock_);
  if (!was_free)
    make();
}

Heap& process_heap() noexcept {
  // In static memory, and not destroyed.
  alignas(Heap) static std::byte memory[sizeof(Heap)];
  static Heap& made = *new (memory) Heap;
  return made;
}

} // namespace adverb::interpose
