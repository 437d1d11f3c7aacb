// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A part of a READ: bytes of the program's memory go into the reply.
#include "memory/copy.h"
#include "transfer/handler.h"
#include "world/world.h"

namespace adverb::transfer {

using observe::Counter;

namespace {

Status fetch(World& world, Target& target, const RequestHeader& r, std::span<std::byte> to) {
  std::byte* all = nullptr;
  if (r.length > to.size() || target.regions().remote(target.pd(), r.key, r.total_address, r.total,
                                                      IBV_ACCESS_REMOTE_READ, all) != 0)
    return Status::refused;
  if (!memory::read(to.data(), all + (r.address - r.total_address), r.length))
    return Status::fault;
  if ((r.flags & last_part) != 0)
    world.counters.count(Counter::responder_reads);
  world.counters.count(Counter::responder_bytes, r.length);
  return Status::ok;
}

} // namespace

void run_read(const Request& request, ReplyToken token) {
  const RequestHeader& r = request.header;
  token.reply().offset = r.address - r.total_address;
  token.answer(fetch(request.world, *request.target, r, token.room()), r.length);
}

} // namespace adverb::transfer
