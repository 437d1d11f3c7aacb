// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The queue pairs of this process that peers may ask for.
#pragma once

#include "link/local_qp.h"
#include "link/wire.h"
#include "world/sync.h"

#include <mutex>
#include <set>
#include <unordered_map>

namespace adverb::link {

// Thread-safe.
class Directory {
public:
  void put(const LocalQp& qp);
  bool remove(uint64_t handle, LocalQp* was = nullptr);
  bool find(uint64_t handle, LocalQp& qp) const;
  // The queue pair that `bind` means, if it is connected to the one that asks.
  wire::Answer match(const wire::Bind& bind, LocalQp& qp) const;
  // Where this process has queue pairs of the number.
  std::set<ibv_device*> devices(uint32_t qpn) const;

private:
  mutable Mutex lock_;
  std::unordered_map<uint64_t, LocalQp> qps_;
  std::unordered_multimap<uint32_t, uint64_t> by_number_; // their handles
};

} // namespace adverb::link
