// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The first verb of a process: reads the policy, opens log and counters, says what adverb is.
#pragma once

#include "world/world.h"

namespace adverb::model {

// True when the policy may change anything for this program. Once per process, before any thread
// or descriptor of adverb's exists.
bool start(World& world);

// Reports a device at its first managed open.
void started_on(World& world, const char* device);

} // namespace adverb::model
