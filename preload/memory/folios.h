// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How much memory a registration keeps in place: whole folios, whatever part of one it names. And
// what of it is there.
#pragma once

#include "memory/monitor.h"

#include <cstdint>

namespace adverb::memory {

inline constexpr uintptr_t huge_page = 2UL << 20; // bytes, x86-64 with pages of 4 KiB

// Whether the page at `address` is part of a transparent huge page that is mapped as a whole. Asks
// the kernel (PAGEMAP_SCAN, Linux 6.7); an older one does not say, and then it is one where huge
// pages are made at all. Not of hugetlbfs: such memory is a file's. A few microseconds.
bool is_huge(uintptr_t address);

// The pages around `wanted`, and no further than `within`, that are in memory without a gap; empty:
// one of `wanted` itself is not. Of private anonymous memory. Touches none; they may go at any
// time.
Range resident_around(Range wanted, Range within);

} // namespace adverb::memory
