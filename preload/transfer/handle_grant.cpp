// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A peer's atomic runs on this process's device: it is granted a real key for the bytes, and gives
// it back.
#include "registration/staged_receives.h"
#include "transfer/handler.h"
#include "world/world.h"

namespace adverb::transfer {

void run_grant(const Request& request, ReplyToken token) {
  Target& target = *request.target;
  const RequestHeader& r = request.header;
  if (request.binding->grants.size() >= Binding::grants_max) {
    if (request.world.log.every("grants", 10))
      request.world.log.warn("a peer's queue pair has borrowed {} windows here and asks for more; "
                             "refused",
                             Binding::grants_max);
    return token.answer(Status::refused);
  }
  std::byte* bytes = nullptr;
  if (r.total != 8 || target.regions().remote(target.pd(), r.key, r.total_address, r.total,
                                              IBV_ACCESS_REMOTE_ATOMIC, bytes) != 0)
    return token.answer(Status::refused);
  // A page that is slow to come would be waited for here, by all that share the lock.
  if (!request.brought)
    return token.bring({bytes, r.total});
  std::shared_ptr<registration::Grant> grant;
  if (target.regions().grant(r.key, r.total_address, r.total, IBV_ACCESS_REMOTE_ATOMIC, grant) != 0)
    return token.answer(Status::refused);
  // The peer's messages before this question are in their places, so where any stand in staging
  // each atomic asks. (None is staged while something is lent.)
  const auto* const staged = request.world.parts.staged_receives.made();
  const bool once = staged != nullptr && staged->any();
  ReplyHeader& reply = token.reply();
  reply.offset = once ? 1 : 0;
  reply.rkey = grant->rkey;
  reply.grant_start = grant->start;
  reply.grant_bytes = grant->bytes;
  reply.grant = request.binding->next_grant++;
  request.binding->grants[reply.grant] = std::move(grant);
  token.answer(Status::ok);
}

void run_release(const Request& request, ReplyToken token) {
  Target* target = request.target;
  if (target == nullptr)
    return token.answer(Status::refused);
  Grants& grants = request.binding->grants;
  if (const auto it = grants.find(request.header.address); it != grants.end()) {
    target->regions().revoke(it->second);
    grants.erase(it);
  }
  token.answer(Status::ok);
}

} // namespace adverb::transfer
