// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "allocations.h"

#include <cstdlib>
#include <new>

namespace adverb::test {

std::atomic<uint64_t> allocations{0};
std::atomic<uint64_t> refused{0};

} // namespace adverb::test

[[gnu::noinline]] void* operator new(size_t bytes) {
  if (++adverb::test::allocations == adverb::test::refused)
    throw std::bad_alloc();
  if (void* memory = malloc(bytes == 0 ? 1 : bytes))
    return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t /*bytes*/) noexcept {
  free(memory);
}
