// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The process's World for rooms that are not yet handed one. Goes when all are.
#pragma once

#include "world/world.h"

namespace adverb::transition {

World& world() noexcept;
/// Also the free functions of the ground rooms use it from now on.
void use(World& world) noexcept;

} // namespace adverb::transition
