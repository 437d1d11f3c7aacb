// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/kept.h"
#include "memory/folios.h"
#include "memory/mappings.h"

namespace adverb::registration {

uint64_t kept_for(uintptr_t from, uintptr_t to) {
  const auto grain = [](uintptr_t at) {
    return memory::is_huge(at) ? memory::huge_page : memory::base_page();
  };
  const uintptr_t low = grain(from);
  const uintptr_t high = grain(to - 1);
  return ((to + high - 1) & ~(high - 1)) - (from & ~(low - 1));
}

} // namespace adverb::registration
