// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a key of this process is.
#include "transfer/handler.h"

namespace adverb::transfer {

void run_query(const Request& request, ReplyToken token) {
  if (request.target == nullptr)
    return token.answer(Status::refused);
  auto& regions = request.target->regions();
  if (!regions.is_virtual_to_peer(request.header.key))
    return token.answer(Status::not_virtual);
  request.told.tell(regions, request.header.key);
  token.answer(Status::ok);
}

} // namespace adverb::transfer
