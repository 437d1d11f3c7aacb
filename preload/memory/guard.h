// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Native copies to and from the program's memory that report a fault instead of dying of it.
//
// The kernel's copy costs a system call and may tear an 8-byte value (a `rep movsb` of 8 bytes is 8
// stores on some processors and under emulation); a NIC does not. So copies are made by plain loads
// and stores, under a handler of SIGSEGV and SIGBUS that knows them (dispositions.h). A thread that
// blocks these signals would die of a fault: whether it does is known from the hooked functions
// that change masks, and asked of the kernel, with whose the handlers are, when that is some
// milliseconds old.
#pragma once

#include <cstddef>

namespace adverb::memory {

// Whether this thread may call the other two now: asked before each copy.
bool native_now() noexcept;

// How many of the bytes, from the end, were not copied.
size_t copy_native(void* to, const void* from, size_t bytes) noexcept;

// The same of 1..8 bytes that lie within one aligned 8-byte word: 8 aligned bytes as one store,
// fewer as the largest natural pieces in rising order.
size_t store_native(void* to, const void* from, size_t bytes) noexcept;

} // namespace adverb::memory
