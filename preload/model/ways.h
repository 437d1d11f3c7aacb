// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

#include "steering/way.h"

namespace adverb::model {

// The ways of this library, from steering/ways.def. Defined in ways.cpp and nowhere named but
// where a queue pair is made, so that a test links a table of its own in its place.
steering::WayTable ways() noexcept;

} // namespace adverb::model
