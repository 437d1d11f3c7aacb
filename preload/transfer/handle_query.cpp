// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a key of this process is.
#include "transfer/handler.h"
#include "world/world.h"

#include <utility>

namespace adverb::transfer {

using Number = link::Peer::Number;
using observe::Counter;

void answer(World& world, link::Peer* peer, OfKey of, ReplyToken token) {
  if (of.missed)
    world.counters.count(Counter::key_misses);
  if (peer == nullptr)
    return token.answer(of.status);
  if (of.missed)
    peer->count(Number::key_misses);
  const auto wait = peer->misses.wait(world.clock.now(), of.missed);
  if (wait.count() == 0)
    return token.answer(of.status);
  peer->count(Number::bound_key_misses);
  if (world.log.every("key-misses", 10))
    world.log.warn("a peer on {} asks for more than {} keys in a second that do not exist; it is "
                   "answered later",
                   peer->address(), link::Peer::misses_a_second);
  // What is virtual stays so. What names nothing may have a region by then: its first request may
  // fail, as one would that had come a moment ago, and the next one asks anew.
  world.service.after(wait, [status = of.status, kept = std::make_shared<ReplyToken>(
                                                     std::move(token))] { kept->answer(status); });
}

void answer_not_virtual(World& world, link::Peer* peer, const Target& target, uint32_t key,
                        ReplyToken token) {
  answer(world, peer, {Status::not_virtual, !target.regions().exists(target.pd(), key)},
         std::move(token));
}

namespace {

// A region that the device serves is served by this process's CPU, too, under a key of its own.
void offer_service(const Request& request, const ReplyToken& token) {
  auto& regions = request.target->regions();
  const uint32_t served = regions.serve(request.target->pd(), request.header.key);
  if (served == 0)
    return;
  request.told.tell_served(regions, served);
  token.reply().rkey = served;
}

} // namespace

void run_query(const Request& request, ReplyToken token) {
  if (request.target == nullptr)
    return token.answer(Status::refused);
  if (request.peer != nullptr)
    request.peer->count(Number::key_queries);
  auto& regions = request.target->regions();
  const uint32_t key = request.header.key;
  if (!regions.is_virtual_to_peer(request.target->pd(), key)) {
    if (request.world.policy().serves())
      offer_service(request, token);
    return answer_not_virtual(request.world, request.peer, *request.target, key, std::move(token));
  }
  request.told.tell(regions, key);
  answer(request.world, request.peer, {Status::ok, false}, std::move(token));
}

} // namespace adverb::transfer
