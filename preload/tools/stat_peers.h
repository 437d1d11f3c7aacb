// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// `adverb stat --peers`: whom a program has links with, as a table.
#pragma once

#include "observe/snapshot.h"

namespace adverb::tools {

void print_peers(const observe::Snapshot& snapshot);

} // namespace adverb::tools
