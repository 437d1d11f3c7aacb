// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Memory that adverb maps for itself, away from the program's.
//
// A program with one thread may unmap memory and map the same addresses again by MAP_FIXED, or move
// it away page by page: nobody can have taken them meanwhile. adverb's threads could, as the kernel
// gives whoever does not say where the highest place that has room; what was theirs would be lost.
// So they say where.
#pragma once

#include <cstddef>

namespace adverb::memory {

// Private and anonymous, like mmap(): MAP_FAILED and errno. munmap() ends it. From any thread.
void* map_own(size_t bytes, int protection) noexcept;

} // namespace adverb::memory
