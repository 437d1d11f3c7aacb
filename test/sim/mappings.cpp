// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the programs of a schedule register is memory of their own, mapped unless they have taken it
// away; to ask the kernel each time takes more than the rest of a schedule.
#include "memory/mappings.h"
#include "pages.h"

namespace adverb::memory {

Mapping mapping_of(uintptr_t start, size_t length, bool) {
  if (!sim::Pages::all_there(start, length))
    return Mapping::absent;
  return sim::Pages::any_foreign(start) ? Mapping::foreign : Mapping::ordinary;
}

bool is_private_and_anonymous(uintptr_t start, size_t length) {
  return sim::Pages::all_there(start, length);
}

} // namespace adverb::memory

// In the place of memory::is_huge(uintptr_t), which asks the kernel (meson.build).
extern "C" bool __wrap__ZN6adverb6memory7is_hugeEm(uintptr_t address); // NOLINT: the linker's name
bool __wrap__ZN6adverb6memory7is_hugeEm(uintptr_t address) {           // NOLINT
  return sim::Pages::are_huge(address);
}
