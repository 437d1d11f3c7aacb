// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A part of a WRITE: bytes of the message go to the program's memory.
#include "transfer/handler.h"
#include "world/world.h"

namespace adverb::transfer {

using observe::Counter;

void run_write(const Request& request, ReplyToken token) {
  const RequestHeader& r = request.header;
  Target& target = *request.target;
  std::byte* all = nullptr;
  if (target.regions().remote(target.pd(), r.key, r.total_address, r.total, IBV_ACCESS_REMOTE_WRITE,
                              all) != 0)
    return token.answer(Status::refused);
  // Only the end of the message has to come last; what is before it may land in any order.
  token.copy({.way = (r.flags & last_part) != 0 ? Copy::Way::in_order : Copy::Way::in,
              .program = all + (r.address - r.total_address),
              .bytes = r.length,
              .copied = [](World& world, Target& to, const RequestHeader& header) {
                world.counters.count(Counter::responder_bytes, header.length);
                if ((header.flags & last_part) == 0)
                  return;
                world.counters.count(Counter::responder_writes);
                if ((header.flags & with_immediate) != 0)
                  to.expect_immediate(header.receive, static_cast<uint32_t>(header.total));
              }});
}

} // namespace adverb::transfer
