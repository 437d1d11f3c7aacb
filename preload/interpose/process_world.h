// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

#include "model/edge.h"
#include "world/world.h"

namespace adverb::interpose {

/// The World of this process: what the hooks, which take no World, hand to the model. Any thread,
/// also before constructors ran; it is never destroyed, as the program's last exit handlers may
/// still use verbs.
World& process_world() noexcept;

/// What its model tells the edge (edge.cpp).
model::Edge& process_edge() noexcept;

/// From the first verb on: a fork child abandons what is the parent's, passes the parent's objects
/// through, and manages anew what it creates itself. Idempotent.
void watch_forks();

} // namespace adverb::interpose
