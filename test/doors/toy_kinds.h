// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Kinds of messages that only the toy's library knows.
#pragma once

#include "transfer/messages.h"

namespace adverb::toy {

inline constexpr auto write = static_cast<transfer::Kind>(100);
inline constexpr auto read = static_cast<transfer::Kind>(101);

} // namespace adverb::toy
