// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Completions that wait for the program to poll them, in the order in which it gets them.
#pragma once

#include "steering/completion.h"
#include "world/sync.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::model {

// Not thread-safe; the CQ's ready_lock_ guards it. empty() and size() are any thread's: a program
// that finds nothing takes no lock.
class ReadyRing {
public:
  // It grows with the most that was in it: few programs let a deep queue fill.
  explicit ReadyRing(size_t capacity) : ring_(capacity) {}

  bool empty() const noexcept { return size() == 0; }
  size_t size() const noexcept { return size_.load(std::memory_order_acquire); }

  // Behind all others. May throw std::bad_alloc, and then has changed nothing.
  void append(const steering::Completion& completion);
  // The first; false: there is none.
  bool take(steering::Completion& completion) noexcept;
  // As many as there are and `to` has room for; how many.
  size_t take(std::span<ibv_wc> to) noexcept;

  // Any of the queue pair of that number.
  bool has(uint32_t qpn) const noexcept;
  // All of the queue pair of that number; the others keep their order.
  void remove(uint32_t qpn) noexcept;

private:
  const steering::Completion& at(size_t i) const { return ring_[(head_ + i) % ring_.size()]; }
  steering::Completion& at(size_t i) { return ring_[(head_ + i) % ring_.size()]; }
  void drop(size_t count) noexcept;

  std::vector<steering::Completion> ring_;
  size_t head_ = 0;
  Atomic<size_t> size_{0};
};

} // namespace adverb::model
