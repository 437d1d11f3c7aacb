// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/own.h"

#include <atomic>
#include <cstdint>
#include <sys/mman.h>

namespace adverb::memory {
namespace {

constexpr uintptr_t page = 4096;
// Far above a program and its heap, far below what the kernel places by itself (from 128 TiB down,
// on x86-64). It is a hint: where it is no place, or taken, the kernel chooses another.
constexpr uintptr_t place = uintptr_t{42} << 40;

std::atomic<uintptr_t> next{0};

// As hard to guess as where the library lies.
uintptr_t first_place() noexcept {
  constexpr uintptr_t guessed = (uintptr_t{1} << 40) - page;
  return place + (reinterpret_cast<uintptr_t>(&next) & guessed);
}

uintptr_t place_for(size_t bytes) noexcept {
  uintptr_t none = 0;
  next.compare_exchange_strong(none, first_place(), std::memory_order_relaxed);
  return next.fetch_add((bytes + page - 1) & ~(page - 1), std::memory_order_relaxed);
}

} // namespace

void* map_own(size_t bytes, int protection) noexcept {
  return mmap(reinterpret_cast<void*>(place_for(bytes)), bytes, protection,
              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

} // namespace adverb::memory
