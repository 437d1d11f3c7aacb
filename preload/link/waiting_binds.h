// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Binds and probes that wait until the queue pair that they ask for is connected to its peer.
#pragma once

#include "link/wire.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace adverb::link {

namespace owning {
struct Link;
} // namespace owning

// Service thread only.
class WaitingBinds {
public:
  struct Bind {
    std::weak_ptr<owning::Link> link; // whose end ends it
    wire::Bind bind{};
    bool probe = false;
    uint64_t timer = 0; // which the caller cancels
  };

  // The number that the next one gets; never 0, and never given twice.
  uint64_t next() const noexcept { return next_; }
  void add(Bind bind) {
    of_qp_[bind.bind.dqpn].insert(next_);
    all_.emplace(next_, std::move(bind));
    ++next_;
  }
  // Empty: it waits no more.
  std::optional<Bind> remove(uint64_t number) {
    const auto at = all_.find(number);
    if (at == all_.end())
      return std::nullopt;
    const auto others = of_qp_.find(at->second.bind.dqpn);
    others->second.erase(number);
    if (others->second.empty())
      of_qp_.erase(others);
    std::optional<Bind> bind(std::move(at->second));
    all_.erase(at);
    return bind;
  }
  // Null: it waits no more.
  const Bind* find(uint64_t number) const {
    const auto at = all_.find(number);
    return at == all_.end() ? nullptr : &at->second;
  }
  // The numbers of those that wait for this queue pair number, in no order.
  std::vector<uint64_t> of_qp(uint32_t qpn) const {
    const auto at = of_qp_.find(qpn);
    return at == of_qp_.end() ? std::vector<uint64_t>{}
                              : std::vector(at->second.begin(), at->second.end());
  }
  size_t size() const noexcept { return all_.size(); }

private:
  std::unordered_map<uint64_t, Bind> all_;
  std::unordered_map<uint32_t, std::unordered_set<uint64_t>> of_qp_;
  uint64_t next_ = 1;
};

} // namespace adverb::link
