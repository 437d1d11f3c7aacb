// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What lies at a range of the program's addresses, without touching a page of it but the last of a
// mapped file, for only the kernel knows where that ends.
#pragma once

#include <cstddef>
#include <cstdint>

namespace adverb::memory {

enum class Mapping {
  ordinary, // anonymous, private file, shared memory or huge pages: what adverb can serve unpinned
  foreign,  // device or other special memory, or a shared file: for the provider to judge
  absent,   // a hole, a page without the right asked for or one past a file's end: stock
            // registration fails with EFAULT
};

// Bytes [start, start + length); `writable` asks for write permission too. Linear in the number of
// mappings of the process (reads /proc/self/maps), constant in bytes. Thread-safe; allocates.
Mapping mapping_of(uintptr_t start, size_t length, bool writable);

} // namespace adverb::memory
