// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A part of a READ: bytes of the program's memory go into the reply.
#include "transfer/handler.h"
#include "transfer/lessor.h"
#include "world/world.h"

namespace adverb::transfer {

using observe::Counter;

void run_read(const Request& request, ReplyToken token) {
  const RequestHeader& r = request.header;
  Target& target = *request.target;
  std::byte* all = nullptr;
  if (r.length > token.room().size() ||
      target.regions().remote(target.pd(), r.key, r.total_address, r.total, IBV_ACCESS_REMOTE_READ,
                              all) != 0)
    return token.answer(Status::refused);
  const uint64_t offset = r.address - r.total_address;
  token.reply().offset = offset;
  if (request.lessor.views_known() && target.regions().has_views(r.key))
    token.reply().flags |= has_views;
  token.copy({.way = Copy::Way::out,
              .program = all + offset,
              .bytes = r.length,
              .copied = [](World& world, Target& of, const RequestHeader& header) {
                of.regions().served(header.key, header.address, header.length);
                if ((header.flags & last_part) != 0)
                  world.counters.count(Counter::responder_reads);
                world.counters.count(Counter::responder_bytes, header.length);
              }});
}

} // namespace adverb::transfer
