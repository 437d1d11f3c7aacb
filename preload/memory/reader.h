// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The thread by which a monitor hears of changes.
#pragma once

#include <functional>
#include <thread>

namespace adverb::memory {

/// `reader` runs `run`, and no signal of the program ever meets it. 0, or errno; throws
/// std::bad_alloc. Not to be called by two threads for one `reader`.
int start_reader(std::thread& reader, std::function<void()> run);

} // namespace adverb::memory
