// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "toy_handler.h"
#include "transfer/told_keys.h"

#include <algorithm>
#include <stdexcept>

namespace adverb::test {

using transfer::HandlerRow;
using transfer::Key;
using transfer::Order;
using transfer::ReplyToken;
using transfer::Request;
using transfer::Right;
using transfer::Shape;
using transfer::Status;

std::vector<Kept> kept;
std::shared_ptr<registration::Key> to_tell;

namespace {

void echo(const Request& request, ReplyToken token) {
  std::ranges::reverse_copy(request.payload, token.room().begin());
  token.answer(Status::ok, request.payload.size());
}

void keep(const Request& request, ReplyToken token) {
  kept.push_back({request.header.request, std::move(token)});
}

void drop(const Request&, ReplyToken) {}

void raise(const Request&, ReplyToken) {
  throw std::runtime_error("a toy that breaks");
}

void fail(const Request&, ReplyToken token) {
  token.answer(Status::refused);
}

void tell(const Request& request, ReplyToken token) {
  request.told.hold(to_tell);
  token.answer(Status::ok);
}

constexpr HandlerRow row(uint8_t kind, const char* name, Order order, transfer::Run run) {
  return {kind, name, 2, Right::none, Key::free, order, Shape::any, run};
}

const HandlerRow later_row = row(toy_later, "later", Order::queue_pair, keep);
const HandlerRow channel_row = row(toy_channel, "channel", Order::channel, keep);
const HandlerRow alone_row = row(toy_alone, "alone", Order::none, keep);
const HandlerRow drop_row = row(toy_drop, "drop", Order::none, drop);
const HandlerRow throw_row = row(toy_throw, "throw", Order::none, raise);
const HandlerRow fail_row = row(toy_fail, "fail", Order::queue_pair, fail);
const HandlerRow told_row = row(toy_told, "told", Order::none, tell);
const HandlerRow named_row{toy_named,  "named",           0,          Right::none,
                           Key::named, Order::queue_pair, Shape::any, fail};

const HandlerRow turn_row{toy_turn,          "turn",      2,   Right::none, Key::free,
                          Order::queue_pair, Shape::bare, keep};

} // namespace

const HandlerRow toy_echo_row = row(toy_echo, "echo", Order::none, echo);
const std::vector<const HandlerRow*> toy_rows = {
    &toy_echo_row, &later_row, &channel_row, &alone_row, &drop_row,
    &throw_row,    &fail_row,  &told_row,    &named_row, &turn_row};

} // namespace adverb::test
