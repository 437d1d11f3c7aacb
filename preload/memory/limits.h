// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <sys/types.h>

namespace adverb::memory {

// What is left of RLIMIT_MEMLOCK for this process now, in bytes; UINT64_MAX when it is not bounded
// (no limit, or CAP_IPC_LOCK). Reads /proc/self/status.
uint64_t memlock_left();

// Bytes of memory that there are for this process, and who shares them.
struct MemoryLimit {
  uint64_t bytes = 0; // 0: it is not known
  std::string group;  // the control group (version 2) that may have no more; empty: the whole host
};
// Of the host, or the least that this process's control group or one above it may have. `root`
// stands before the paths of /proc and /sys, for tests.
MemoryLimit memory_limit(const std::string& root = {});

// Whether memory is short: somebody has waited for it in the last ten seconds for a tenth of the
// time, in this process's control group, or where that is not measured on the host; or where that
// is not, either, a twentieth of it is available.
bool is_memory_short(const std::string& root = {});

// How many of these processes live and are in `group`, or one below it (empty: anywhere), this one
// among them whether it is listed or not.
unsigned processes_in(const std::string& group, std::span<const pid_t> processes,
                      const std::string& root = {});

} // namespace adverb::memory
