// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// All that a library which is linked with this file allocates by new, the C++ library in it
// included, comes from its own heap. All others of these operators call one of the first four. Not
// where a sanitizer watches the program's heap: it would see nothing of it.
#include "interpose/heap.h"

#include <new>

using adverb::interpose::process_heap;

void* operator new(size_t bytes) {
  if (void* const block = process_heap().allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__))
    return block;
  throw std::bad_alloc();
}

void* operator new(size_t bytes, std::align_val_t alignment) {
  if (void* const block = process_heap().allocate(bytes, static_cast<size_t>(alignment)))
    return block;
  throw std::bad_alloc();
}

void operator delete(void* block) noexcept {
  process_heap().free(block);
}

void operator delete(void* block, std::align_val_t /*alignment*/) noexcept {
  process_heap().free(block);
}

// What these would call is the same, but the compiler wants to see them beside the two.
void operator delete(void* block, size_t /*bytes*/) noexcept {
  process_heap().free(block);
}

void operator delete(void* block, size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  process_heap().free(block);
}
