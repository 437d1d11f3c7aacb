// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Copies and stores by plain instructions that lie between two labels, so that a handler of faults
// can tell them by their address. Only on x86-64; and not under ThreadSanitizer, which sees nothing
// of them, and whose runtime asks for signals before code that it has instrumented may run.
//
// Each answers how many bytes were not copied. A fault inside goes on where that is told: what came
// before the faulting piece has been copied, nothing of what comes after it.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define ADVERB_NATIVE_COPY 1

extern "C" {
// In rising order up to 127 bytes; above, in no particular order but before any later store.
[[gnu::visibility("hidden")]] size_t adverb_copy(void* to, const void* from, size_t bytes) noexcept;

// One store of 8, 4, 2 or 1 bytes, which an aligned address makes whole.
[[gnu::visibility("hidden")]] size_t adverb_store8(void* to, uint64_t value) noexcept;
[[gnu::visibility("hidden")]] size_t adverb_store4(void* to, uint64_t value) noexcept;
[[gnu::visibility("hidden")]] size_t adverb_store2(void* to, uint64_t value) noexcept;
[[gnu::visibility("hidden")]] size_t adverb_store1(void* to, uint64_t value) noexcept;

[[gnu::visibility("hidden")]] extern const char adverb_copy_begin[];
[[gnu::visibility("hidden")]] extern const char adverb_copy_end[];
[[gnu::visibility("hidden")]] extern const char adverb_copy_failed[]; // where a fault goes on
}
#endif
