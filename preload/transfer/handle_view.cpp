// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A peer's process is to read this one's memory by its device, with nothing pinned: it is told the
// key of a view (registration/views.h), what addresses that has, and what a page that is away reads
// as.
#include "transfer/handler.h"
#include "transfer/lessor.h"
#include "world/world.h"

#include <cerrno>
#include <cstring>

namespace adverb::transfer {

// `refused`: never of this region; `fault`: not now, or not of these bytes.
void run_view(const Request& request, ReplyToken token) {
  Target& target = *request.target;
  const RequestHeader& r = request.header;
  auto& regions = target.regions();
  std::byte* bytes = nullptr;
  if (regions.remote(target.pd(), r.key, r.total_address, r.total, IBV_ACCESS_REMOTE_READ, bytes) !=
      0)
    return token.answer(Status::refused);
  const auto room = token.room();
  if (room.size() < registration::pattern_bytes || request.lessor.recalls())
    return token.answer(Status::fault);
  std::shared_ptr<registration::Grant> view;
  if (const int rc = regions.view(r.key, r.total_address, r.total, view); rc != 0)
    return token.answer(rc == EAGAIN || rc == ERANGE ? Status::fault : Status::refused);
  memcpy(room.data(), view->pattern->data(), registration::pattern_bytes);
  ReplyHeader& reply = token.reply();
  reply.rkey = view->rkey;
  reply.grant_start = view->start;
  reply.grant_bytes = view->bytes;
  reply.grant = request.lessor.give_view(std::move(view));
  if (reply.grant == 0)
    return token.answer(Status::fault);
  token.answer(Status::ok, registration::pattern_bytes);
}

} // namespace adverb::transfer
