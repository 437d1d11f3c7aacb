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

// The threads of program `number`: adverb's own, the one that posts, and the one that polls.
constexpr uint32_t service_of(uint32_t number) {
  return 1 + 3 * number;
}
constexpr uint32_t poster_of(uint32_t number) {
  return 2 + 3 * number;
}
constexpr uint32_t poller_of(uint32_t number) {
  return 3 + 3 * number;
}

} // namespace sim
