// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a policy means for one program, in words.
#pragma once

#include "policy/policy.h"
#include "tools/program.h"

#include <string>

namespace adverb::tools {

// Writes to stdout. `device` is the only device to explain, or empty for all that rules name.
void print_explanation(const policy::Policy& policy, const std::string& origin,
                       const Program& program, const std::string& device);

} // namespace adverb::tools
