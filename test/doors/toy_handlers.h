// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

#include "transfer/handler.h"

namespace adverb::toy {

extern const transfer::HandlerRow write_row;
extern const transfer::HandlerRow read_row;

} // namespace adverb::toy
