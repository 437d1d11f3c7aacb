// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/copied.h"

namespace adverb::registration {

bool Copied::window_is_due(const Region& region, uintptr_t start, uint64_t length) {
  const uint64_t critical = critical_.load(std::memory_order_relaxed);
  if (length >= critical)
    return true;
  const uint64_t number = start >> part_bits;
  const uint64_t mixed =
      (number ^ (reinterpret_cast<uintptr_t>(region.life) << 7)) * 0x9E3779B97F4A7C15U;
  const std::lock_guard hold(lock_);
  if (parts_ == nullptr)
    parts_ = std::make_unique<std::array<Part, size_t{1} << table_bits>>();
  Part& part = (*parts_)[mixed >> (64 - table_bits)];
  if (part.life != region.life || part.of != region.life->number || part.number != number)
    part = {region.life, region.life->number, number, 0};
  part.bytes += length;
  return part.bytes >= critical;
}

} // namespace adverb::registration
