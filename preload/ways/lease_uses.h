// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Of one way of a queue pair: which of its requests are with the device by what is leased.
//
// Not thread-safe: the queue pair's lock guards it.
#pragma once

#include "steering/request.h"
#include "transfer/leases.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace adverb::ways {

using transfer::Lease;
using transfer::Leases;

class LeaseUses {
public:
  LeaseUses() = default;
  ~LeaseUses() { end_all(); }
  LeaseUses(const LeaseUses&) = delete;
  LeaseUses& operator=(const LeaseUses&) = delete;

  // So that add() needs no memory.
  void make_room() { uses_.reserve(uses_.size() + 1); }
  // `lease` was taken for `r` by Leases::use() or use_view(), and is done() when that ends.
  void add(const steering::Request& r, Lease& lease, std::shared_ptr<Leases> of) {
    uses_.push_back({r.seq, &lease, std::move(of)});
  }
  // Null: it has none.
  Lease* lease_of(const steering::Request& r) const noexcept;
  // What that is of, and stays of when the link is lost.
  std::shared_ptr<Leases> leases_of(const steering::Request& r) const noexcept;
  void end(const steering::Request& r);
  // The queue pair has forgotten its requests, or the link is lost, and the leases with it.
  void end_all();

private:
  struct Use {
    uint64_t seq;
    Lease* lease;
    std::shared_ptr<Leases> of;
  };
  std::vector<Use> uses_; // in the order of the requests
};

} // namespace adverb::ways
