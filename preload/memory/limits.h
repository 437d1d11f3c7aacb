// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

#include <cstdint>

namespace adverb::memory {

// What is left of RLIMIT_MEMLOCK for this process now, in bytes; UINT64_MAX when it is not bounded
// (no limit, or CAP_IPC_LOCK). Reads /proc/self/status.
uint64_t memlock_left();

} // namespace adverb::memory
