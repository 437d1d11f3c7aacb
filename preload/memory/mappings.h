// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What lies at a range of the program's addresses, without touching a page of it but the last of a
// mapped file, for only the kernel knows where that ends; and few pages on an older kernel (Maps).
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

// How the kernel is asked, each way also where the one before is of no use: by an ioctl for each
// mapping in question (PROCMAP_QUERY, Linux 6.11); by having the pages there, as a registration of
// stock's does, up to 64 KiB, if they turn out to be the process's own; by reading the text of all
// mappings of the process.
enum class Maps { asked, tried, read };

// Bytes [start, start + length); `writable` asks for write permission too. Linear in the number of
// mappings in question, or of the process (see above), constant in bytes. Thread-safe; allocates.
Mapping mapping_of(uintptr_t start, size_t length, bool writable, Maps by = Maps::asked);

// Whether all of it is mapped, and is this process's alone: no file's, no shared memory, nothing
// whose contents another process or a call on a file could change. As costly.
bool is_private_and_anonymous(uintptr_t start, size_t length, Maps by = Maps::asked);

// Behind the last byte of the mapping that `address` lies in; 0: there is none, or the kernel
// cannot be asked. Any thread; asks for no memory.
uintptr_t end_of_mapping(uintptr_t address) noexcept;

// Bytes of a page of ordinary memory: 4096 on x86-64, up to 65536 elsewhere.
size_t base_page() noexcept;

// Bytes of a page of the mapping that `address` lies in: of hugetlb memory those of a huge page, of
// everything else those of a base page, whatever the kernel makes of it (folios.h). Before Linux
// 6.11 reads the text of all mappings. Any thread; allocates.
size_t page_of_mapping(uintptr_t address, Maps by = Maps::asked);

} // namespace adverb::memory
