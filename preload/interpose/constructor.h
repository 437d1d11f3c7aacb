// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

namespace adverb::interpose {

// False while adverb must stay out of the way: before its constructor ran (the hooks may be called
// from constructors of other libraries) and when the policy changes nothing for this program. The
// first call in a process reads policy and environment.
bool active() noexcept;

} // namespace adverb::interpose
