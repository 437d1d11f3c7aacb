// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a registration is charged for.
#pragma once

#include <cstdint>

namespace adverb::registration {

// Bytes that one of [from, to) keeps in place: those of its pages, and of the huge ones that the
// first and the last are of all.
uint64_t kept_for(uintptr_t from, uintptr_t to);

} // namespace adverb::registration
