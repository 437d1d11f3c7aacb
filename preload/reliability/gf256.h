// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The field GF(2^8) of the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d), by tables. libisal
// computes in the same field. Sums are exclusive ors.
//
// All functions are pure, or write only to `into`; any thread may call them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace adverb::reliability::gf256 {

uint8_t multiply(uint8_t left, uint8_t right);

// `value` is not 0, which has no inverse.
uint8_t inverse(uint8_t value);

// Shards. `into` and `from` have `bytes` bytes each and do not overlap; no alignment is needed.

// into[i] += from[i]
void add(std::byte* into, const std::byte* from, size_t bytes);
// into[i] += factor * from[i]
void add_product(std::byte* into, uint8_t factor, const std::byte* from, size_t bytes);

} // namespace adverb::reliability::gf256
