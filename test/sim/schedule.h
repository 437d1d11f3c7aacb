// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One schedule, from the making of its programs to their end.
#pragma once

#include "choices.h"

#include <cstddef>
#include <string>
#include <vector>

namespace sim {

struct Outcome {
  std::vector<std::string> findings;
  size_t steps = 0;
  size_t requests = 0;
  size_t queue_pairs = 0;
  bool preempts = false; // of the kind that does
  size_t switches = 0;   // away from a thread that could have gone on
};

// `loud`: prints what happens.
Outcome run(Choices& choices, bool loud);

} // namespace sim
