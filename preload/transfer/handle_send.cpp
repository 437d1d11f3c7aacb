// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A part of a SEND whose bytes go ahead of it: they are kept until the SEND itself, which has none,
// takes a receive.
#include "transfer/handler.h"

namespace adverb::transfer {

void run_send(const Request& request, ReplyToken token) {
  token.answer(request.target->take_ahead(request.header, request.payload));
}

} // namespace adverb::transfer
