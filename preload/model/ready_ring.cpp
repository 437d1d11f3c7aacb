// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/ready_ring.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace adverb::model {

using steering::Completion;

void ReadyRing::append(const Completion& completion) {
  const size_t count = size_;
  if (count == ring_.size()) {
    std::vector<Completion> larger(std::max<size_t>(2 * ring_.size(), 1));
    for (size_t i = 0; i < count; ++i)
      larger[i] = at(i);
    ring_ = std::move(larger);
    head_ = 0;
  }
  at(count) = completion;
  size_.store(count + 1, std::memory_order_release);
}

void ReadyRing::drop(size_t count) noexcept {
  assert(count <= size_);
  head_ = ring_.empty() ? 0 : (head_ + count) % ring_.size();
  size_ -= count;
}

bool ReadyRing::take(Completion& completion) noexcept {
  if (size_ == 0)
    return false;
  completion = at(0);
  drop(1);
  return true;
}

size_t ReadyRing::take(std::span<ibv_wc> to) noexcept {
  const size_t count = std::min(size_.load(), to.size());
  for (size_t i = 0; i < count; ++i)
    to[i] = at(i).wc;
  drop(count);
  return count;
}

bool ReadyRing::has(uint32_t qpn) const noexcept {
  for (size_t i = 0; i < size_; ++i)
    if (at(i).wc.qp_num == qpn)
      return true;
  return false;
}

void ReadyRing::remove(uint32_t qpn) noexcept {
  size_t kept = 0;
  for (size_t i = 0; i < size_; ++i)
    if (at(i).wc.qp_num != qpn)
      at(kept++) = at(i);
  size_ = kept;
}

} // namespace adverb::model
