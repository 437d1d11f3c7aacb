// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the pointers of managed extended objects point at, from the table.
#pragma once

#include <cstddef>
#include <cstdint>

#include <infiniband/verbs.h>

namespace adverb::interpose::extended {

#define WR(name, params, args) void name params noexcept;
#define POST(name, params, args) int name params noexcept;
#define CQ(ret, name, params, args, fail) ret name params noexcept;
#include "provider/extended.def"

} // namespace adverb::interpose::extended
