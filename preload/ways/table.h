// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

#include "steering/way.h"

namespace adverb::ways {

// The ways of this library, from ways.def. Defined in table.cpp and nowhere named but where a queue
// pair is made and by the tools, so that a test links a table of its own in its place.
steering::WayTable table() noexcept;

} // namespace adverb::ways
