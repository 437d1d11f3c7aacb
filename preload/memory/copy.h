// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Copies between adverb's own memory and the program's, which may vanish at any moment.
//
// The program may unmap or protect what it registered (an unpinned region is only a promise to
// look again), so every access to its memory is a native copy whose faults are caught (guard.h),
// and, where that faults or may not be made now, goes through the kernel, which answers EFAULT. All
// functions are thread-safe, do not allocate and return false when any byte could not be copied;
// some bytes may then have been.
#pragma once

#include <cstddef>
#include <cstdint>

namespace adverb::memory {

// program -> adverb
bool read(void* to, const void* program, size_t bytes) noexcept;

// adverb -> program, in no particular order of bytes
bool write(void* program, const void* from, size_t bytes) noexcept;

// adverb -> program so that a reader that polls the last byte finds all others in place, and an
// aligned 8-byte payload is seen whole or not at all: what programs expect of a NIC's RDMA WRITE.
bool write_in_order(void* program, const void* from, size_t bytes) noexcept;

// Looks at each page, so that what is slow to come (from a slow disk, or by the program's own
// handling of faults) comes now, and not when somebody waits for whoever copies. A page may be gone
// again by then, and is not written to here.
void bring_in(const void* program, size_t bytes) noexcept;

// Whether all of its pages, 64 at most, are there now, as mincore(2) tells: asked without waiting
// for any. What it says of a file's pages may be wrong either way, and any may be gone a moment
// later.
bool is_here(const void* program, size_t bytes) noexcept;

// What is used, as far as is known by now, for the log and `adverb doctor`.
const char* method() noexcept;

} // namespace adverb::memory
