// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A peer's atomic runs on this process's device: it is granted a real key for the bytes, and gives
// it back.
#include "transfer/handler.h"

namespace adverb::transfer {

void run_grant(const Request& request, ReplyToken token) {
  Target& target = *request.target;
  const RequestHeader& r = request.header;
  std::byte* unused = nullptr;
  if (target.regions().remote(target.pd(), r.key, r.total_address, r.total,
                              IBV_ACCESS_REMOTE_ATOMIC, unused) != 0)
    return token.answer(Status::refused);
  std::shared_ptr<registration::Grant> grant;
  if (target.regions().grant(r.key, r.total_address, r.total, IBV_ACCESS_REMOTE_ATOMIC, grant) != 0)
    return token.answer(Status::refused);
  ReplyHeader& reply = token.reply();
  reply.rkey = grant->rkey;
  reply.grant_start = grant->start;
  reply.grant_bytes = grant->bytes;
  reply.grant = target.next_grant++;
  target.grants[reply.grant] = std::move(grant);
  token.answer(Status::ok);
}

void run_release(const Request& request, ReplyToken token) {
  Target* target = request.target;
  if (target == nullptr)
    return token.answer(Status::refused);
  if (const auto it = target->grants.find(request.header.address); it != target->grants.end()) {
    target->regions().revoke(it->second);
    target->grants.erase(it);
  }
  token.answer(Status::ok);
}

} // namespace adverb::transfer
