// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A peer's process uses some bytes again and again: it is leased the pages around them, under a
// real key, and gives them back.
#include "registration/grants.h"
#include "registration/kept.h"
#include "transfer/handler.h"
#include "transfer/lessor.h"
#include "world/world.h"

#include <cerrno>

namespace adverb::transfer {

// `refused`: never of this region; `fault`: not now; `full`: not beside what the peer has.
void run_lease(const Request& request, ReplyToken token) {
  Target& target = *request.target;
  const RequestHeader& r = request.header;
  std::byte* bytes = nullptr;
  auto& regions = target.regions();
  if (regions.remote(target.pd(), r.key, r.total_address, r.total, 0, bytes) != 0)
    return token.answer(Status::refused);
  const auto around = regions.lease_bounds(r.key, r.total_address, r.total);
  if (around.empty())
    return token.answer(Status::refused);
  if (bytes + r.total > around.data() + around.size()) // it goes on where changes are told apart
    return token.answer(Status::fault);
  const auto from = reinterpret_cast<uintptr_t>(around.data());
  const uint64_t kept = registration::kept_for(from, from + around.size());
  if (const Status no = request.lessor.may_give(r.key, r.total_address, r.total, kept);
      no != Status::ok) {
    token.reply().grant_start = r.total_address;
    return token.answer(no);
  }
  std::shared_ptr<registration::Grant> lease;
  if (const int rc = regions.lease(r.key, r.total_address, r.total, lease); rc != 0)
    return token.answer(rc == EAGAIN ? Status::fault : Status::refused);
  ReplyHeader& reply = token.reply();
  reply.rkey = lease->rkey;
  reply.grant_start = lease->start;
  reply.grant_bytes = lease->bytes;
  reply.offset = lease->access;
  reply.grant = request.lessor.give(std::move(lease));
  token.answer(reply.grant != 0 ? Status::ok : Status::fault);
}

void run_yield(const Request& request, ReplyToken token) {
  request.lessor.yielded(static_cast<uint32_t>(request.header.address));
  token.answer(Status::ok);
}

} // namespace adverb::transfer
