// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Who may speak for the peers of this process's queue pairs: the process that the kernel vouches
// for, and otherwise the one that was the first to prove it.
#pragma once

#include "link/wire.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

namespace adverb::link {

namespace owning {
struct Link;
} // namespace owning

// Service thread only. Queue pairs are named by their handles. Those that have ended are forgotten
// whenever twice as many are known as were left the last time: `exists(handle)` says which have
// not.
class QpHolders {
public:
  // It was bound over this link, whose process needs no proof.
  template <typename Exists>
  void vouch(uint64_t handle, const std::shared_ptr<owning::Link>& link, const Exists& exists) {
    vouched_[handle] = link;
    if (vouched_.size() <= vouched_max_)
      return;
    std::erase_if(vouched_, [&](const auto& entry) {
      return entry.second.expired() || !exists(entry.first);
    });
    vouched_max_ = std::max(vouched_max_, 2 * vouched_.size());
  }
  // The last link of vouch(); null: none, or that has ended.
  std::shared_ptr<owning::Link> voucher(uint64_t handle) const {
    const auto at = vouched_.find(handle);
    return at == vouched_.end() ? nullptr : at->second.lock();
  }

  // A second client of the same protection domain could write into the slot of a proof, too: what
  // has been proven once only the same identity proves again, as long as the queue pair is what it
  // is. False: it was another one.
  template <typename Exists>
  bool prove(uint64_t handle, const wire::Share& identity, const Exists& exists) {
    const auto [at, first] = proven_.try_emplace(handle, identity);
    if (!first)
      return at->second == identity;
    if (proven_.size() > proven_max_) {
      std::erase_if(proven_, [&](const auto& entry) { return !exists(entry.first); });
      proven_max_ = std::max(proven_max_, 2 * proven_.size());
    }
    return true;
  }

  // How many are known, of both kinds.
  size_t size() const noexcept { return vouched_.size() + proven_.size(); }
  static constexpr size_t at_first = 1024; // of a kind, before those that have ended are forgotten

private:
  std::unordered_map<uint64_t, std::weak_ptr<owning::Link>> vouched_;
  size_t vouched_max_ = at_first;
  std::unordered_map<uint64_t, wire::Share> proven_; // by whose identity
  size_t proven_max_ = at_first;
};

} // namespace adverb::link
