// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The policy in force: loaded when the first question is asked, and again when its file has
// changed.
#pragma once

#include "policy/policy.h"
#include "world/sync.h"

#include <memory>
#include <string>
#include <vector>

namespace adverb::policy {

class Current {
public:
  /// `hits` hears of every hit of a rule, may be null. `given`: a test's own policy, which tells
  /// nobody; null: load_for_this_process() at the first get().
  explicit Current(Hits* hits = nullptr, const Policy* given = nullptr) noexcept
      : hits_(hits), policy_(given) {}

  /// If no policy can be loaded, says so on stderr and returns one under which everything passes
  /// through; problems() then holds what was wrong. Any thread. The policy lives as long as this,
  /// also where another one has taken its place.
  const Policy& get() {
    const Policy* policy = policy_.load(std::memory_order_acquire);
    return policy != nullptr ? *policy : load();
  }
  const std::vector<Error>& problems() {
    get();
    return problems_;
  }

  /// The file that the policy was read from, as an absolute path. Empty: from none.
  const std::string& file() {
    get();
    return file_;
  }

  struct Reread {
    enum class What : uint8_t {
      same,    // as it is in force
      taken,   // another policy is in force: its rules and the settings that can change
      refused, // `errors` says why; what was in force stays
    };
    What what = What::same;
    std::vector<Error> errors;
    std::vector<std::string> later; // keys that differ and take effect when the process starts
  };
  /// Reads that file again. One thread at a time. May throw bad_alloc, and then nothing has
  /// changed.
  Reread reread();

  /// Names of rules by the numbers that `hits` hears: a rule keeps its number while its name stays.
  std::vector<std::string> slots();

  /// Policies of so many different texts are kept, in force or not; no further one is taken.
  static constexpr size_t texts_max = 1000;

  void in_child() noexcept { renew(loading_); }

private:
  struct Kept {
    std::string text; // of the file
    std::unique_ptr<const Policy> policy;
  };

  const Policy& load();
  void prepare(Policy& policy);

  Hits* const hits_;
  Atomic<const Policy*> policy_;
  Mutex loading_;          // of what follows
  std::vector<Kept> kept_; // the first is the one that the process has begun with
  std::vector<std::string> slots_;
  std::string file_;
  std::vector<Error> problems_;
};

} // namespace adverb::policy
