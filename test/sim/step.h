// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Something that could happen next, and which thread does it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace sim {

struct Step {
  uint32_t fibre; // 0: nobody's, such as the device
  std::function<void()> go;
};
using Steps = std::vector<Step>;

// The threads of program `number`: adverb's own, the one that posts, the one that polls, and those
// of adverb's that take over when one of them sleeps in a copy.
constexpr uint32_t copiers = 2;
constexpr uint32_t threads = 3 + copiers;
constexpr uint32_t service_of(uint32_t number) {
  return 1 + threads * number;
}
constexpr uint32_t poster_of(uint32_t number) {
  return 2 + threads * number;
}
constexpr uint32_t poller_of(uint32_t number) {
  return 3 + threads * number;
}
constexpr uint32_t copier_of(uint32_t number, uint32_t which) {
  return 4 + threads * number + which;
}

} // namespace sim
