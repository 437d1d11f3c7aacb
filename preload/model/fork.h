// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

namespace adverb::model {

// From the first managed device on: a fork child passes the parent's objects through, has none of
// the parent's connections, and manages anew what it creates itself. Idempotent.
void watch_forks();

} // namespace adverb::model
