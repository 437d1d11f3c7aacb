// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A part of a WRITE: bytes of the message go to the program's memory.
#include "memory/copy.h"
#include "transfer/handler.h"
#include "world/world.h"

namespace adverb::transfer {

using observe::Counter;

namespace {

Status place(World& world, Target& target, const RequestHeader& r,
             std::span<const std::byte> payload) {
  std::byte* all = nullptr;
  if (target.regions().remote(target.pd(), r.key, r.total_address, r.total, IBV_ACCESS_REMOTE_WRITE,
                              all) != 0)
    return Status::refused;
  std::byte* to = all + (r.address - r.total_address);
  const bool last = (r.flags & last_part) != 0;
  // Only the end of the message has to come last; what is before it may land in any order.
  const bool ok = last ? memory::write_in_order(to, payload.data(), payload.size())
                       : memory::write(to, payload.data(), payload.size());
  if (!ok)
    return Status::fault;
  if (last) {
    world.counters.count(Counter::responder_writes);
    if ((r.flags & with_immediate) != 0)
      target.expect_immediate(r.receive, static_cast<uint32_t>(r.total));
  }
  world.counters.count(Counter::responder_bytes, payload.size());
  return Status::ok;
}

} // namespace

void run_write(const Request& request, ReplyToken token) {
  token.answer(place(request.world, *request.target, request.header, request.payload));
}

} // namespace adverb::transfer
