// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "handlers.h"
#include "world/world.h"

#include <array>
#include <stdexcept>
#include <utility>

namespace sim {

namespace transfer = adverb::transfer;
using transfer::Order;

namespace {

// By another turn of the service's.
void answer_later(const transfer::Request& request, transfer::ReplyToken token) {
  request.world.service.run([kept = std::make_shared<transfer::ReplyToken>(std::move(token))] {
    kept->answer(transfer::Status::ok);
  });
}

void break_down(const transfer::Request&, transfer::ReplyToken) {
  throw std::runtime_error("a handler that breaks");
}

constexpr transfer::HandlerRow row(uint8_t kind, Order order, transfer::Run run) {
  return {kind,  "of the simulation",  0,  transfer::Right::none, transfer::Key::free,
          order, transfer::Shape::any, run};
}

constexpr std::array rows{row(later_kind, Order::queue_pair, answer_later),
                          row(later_kind + 1, Order::channel, answer_later),
                          row(later_kind + 2, Order::none, answer_later),
                          row(breaks_kind, Order::none, break_down)};

} // namespace

std::shared_ptr<transfer::Handlers> make_handlers() {
  auto all = std::make_shared<transfer::Handlers>(transfer::handler_list());
  for (const transfer::HandlerRow& one : rows)
    all->add(one);
  return all;
}

} // namespace sim
