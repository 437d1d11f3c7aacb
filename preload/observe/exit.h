// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

#include "observe/page.h"

namespace adverb::observe {

/// After the program's own exit handlers `page` finishes, with `before` (page.h). For the page of
/// the process: handlers of exit take no argument.
void finish_at_exit(SharedPage& page, void (*before)() noexcept = nullptr) noexcept;

} // namespace adverb::observe
