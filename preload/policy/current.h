// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The policy in force: loaded when the first question is asked, kept from then on.
#pragma once

#include "policy/policy.h"
#include "world/sync.h"

#include <memory>
#include <vector>

namespace adverb::policy {

class Current {
public:
  /// `hits` hears of every hit of a rule, may be null. `given`: a test's own policy, which tells
  /// nobody; null: load_for_this_process() at the first get().
  explicit Current(Hits* hits = nullptr, const Policy* given = nullptr) noexcept
      : hits_(hits), policy_(given) {}

  /// If no policy can be loaded, says so on stderr and returns one under which everything passes
  /// through; problems() then holds what was wrong. Any thread.
  const Policy& get() {
    const Policy* policy = policy_.load(std::memory_order_acquire);
    return policy != nullptr ? *policy : load();
  }
  const std::vector<Error>& problems() {
    get();
    return problems_;
  }

  void in_child() noexcept { renew(loading_); }

private:
  const Policy& load();

  Hits* const hits_;
  Atomic<const Policy*> policy_;
  Mutex loading_;
  std::unique_ptr<const Policy> own_;
  std::vector<Error> problems_;
};

} // namespace adverb::policy
