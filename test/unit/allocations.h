// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Every allocation of a test's program, so that a test can see that there is none, or have one
// fail.
#pragma once

#include <atomic>
#include <cstdint>

namespace adverb::test {

extern std::atomic<uint64_t> allocations;
extern std::atomic<uint64_t> refused; // this one, counted from 1, is not to be had; 0: none

} // namespace adverb::test
