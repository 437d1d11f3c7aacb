// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How much memory adverb itself may pin in this process, and how much it does.
#pragma once

#include <atomic>
#include <cstdint>

namespace adverb::registration {

// Staging memory of this process: min(policy, a quarter of what RLIMIT_MEMLOCK leaves), in bytes,
// decided at first use. Half of it is for the program's queues, half for the links' messages.
uint64_t staging_bytes();

// Bytes of idle and used windows the policy allows to stay pinned.
uint64_t window_bytes();

// A counter of bytes with a ceiling. Thread-safe.
class Budget {
public:
  explicit Budget(uint64_t limit) : limit_(limit) {}
  bool take(uint64_t bytes) noexcept;
  void give(uint64_t bytes) noexcept { used_.fetch_sub(bytes, std::memory_order_relaxed); }

private:
  const uint64_t limit_;
  std::atomic<uint64_t> used_{0};
};

Budget& staging_budget();

} // namespace adverb::registration
