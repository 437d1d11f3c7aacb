// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The owner's half of the toy way: pieces are copied, behind the checks a NIC would make.
#include "toy_handlers.h"
#include "toy_kinds.h"

#include "memory/copy.h"
#include "world/world.h"

namespace adverb::toy {

using transfer::HandlerRow;
using transfer::Key;
using transfer::Order;
using transfer::ReplyToken;
using transfer::Request;
using transfer::Right;
using transfer::Shape;
using transfer::Status;

namespace {

std::byte* find(const Request& request, unsigned right) {
  const auto& h = request.header;
  std::byte* all = nullptr;
  if (request.target->regions().remote(request.target->pd(), h.key, h.total_address, h.total, right,
                                       all) != 0)
    return nullptr;
  return all + (h.address - h.total_address);
}

void place(const Request& request, ReplyToken token) {
  std::byte* to = find(request, IBV_ACCESS_REMOTE_WRITE);
  if (to == nullptr)
    return token.answer(Status::refused);
  const auto& bytes = request.payload;
  request.world.counters.count(observe::Counter::responder_bytes, bytes.size());
  token.answer(memory::write_in_order(to, bytes.data(), bytes.size()) ? Status::ok : Status::fault);
}

void fetch(const Request& request, ReplyToken token) {
  const auto& h = request.header;
  const std::byte* from = find(request, IBV_ACCESS_REMOTE_READ);
  if (from == nullptr || h.length > token.room().size())
    return token.answer(Status::refused);
  if (!memory::read(token.room().data(), from, h.length))
    return token.answer(Status::fault);
  token.reply().offset = h.address - h.total_address;
  request.world.counters.count(observe::Counter::responder_bytes, h.length);
  token.answer(Status::ok, h.length);
}

constexpr auto number(transfer::Kind kind) {
  return static_cast<uint8_t>(kind);
}

} // namespace

const HandlerRow write_row{number(write),     "toy_write",          0,    Right::write, Key::named,
                           Order::queue_pair, Shape::bytes_of_part, place};
const HandlerRow read_row{number(read), "toy_read",        0,           Right::read,
                          Key::named,   Order::queue_pair, Shape::part, fetch};

} // namespace adverb::toy
