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

// Steps and rules that a schedule has only when asked for: they find faults that are not repaired
// yet.
struct Extras {
  bool errors =
      false; // nothing lands through what the device put in error, between two instructions either
  bool downs = false; // queue pairs go to RESET or are destroyed with work outstanding
};

// `loud`: prints what happens.
Outcome run(Choices& choices, const Extras& extras, bool loud);

} // namespace sim
