// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Queue pairs that are in error as none of the program's calls made them: before the program gets
// the completion that says so, no peer's request is served any more that has found them well.
#pragma once

#include "world/sync.h"

#include <cstdint>

namespace adverb::model {

// Not thread-safe; the CQ's ready_lock_ guards it. any() is any thread's.
class FailedQps {
public:
  struct Seen {
    uint64_t handle = 0;  // of the one to wait for; 0: of all
    uint32_t version = 0; // since then no other has failed, if it is the same
  };

  // The queue pair of this handle, which is not 0, has failed.
  void add(uint64_t handle) noexcept {
    several_ |= any_.load() && handle_ != handle;
    handle_ = handle;
    ++version_;
    any_.store(true);
  }
  // Nobody has waited yet for the end of what peers have asked of them.
  bool any() const noexcept { return any_.load(std::memory_order_relaxed); }
  Seen seen() const noexcept { return {several_ ? 0 : handle_, version_}; }
  // What was seen has been waited for. Others that failed meanwhile have not.
  void settled(const Seen& seen) noexcept {
    if (version_ != seen.version)
      return;
    several_ = false;
    any_.store(false);
  }

private:
  uint64_t handle_ = 0; // of the last one
  uint32_t version_ = 0;
  bool several_ = false; // others as well
  Atomic<bool> any_{false};
};

} // namespace adverb::model
