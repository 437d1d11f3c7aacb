// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "transfer/handler.h"

#include <array>

namespace adverb::transfer {

#define HANDLER(name, number, version, right, key, order, shape)                                   \
  void run_##name(const Request& request, ReplyToken token);
#include "transfer/handlers.def"

namespace {

#define HANDLER(name, number, version, right, key, order, shape)                                   \
  constexpr HandlerRow name##_row{number,   #name,        version,      Right::right,              \
                                  Key::key, Order::order, Shape::shape, run_##name};
#include "transfer/handlers.def"

constexpr auto all = std::to_array<const HandlerRow*>({
#define HANDLER(name, number, version, right, key, order, shape) &name##_row,
#include "transfer/handlers.def"
});

} // namespace

std::span<const HandlerRow* const> handler_list() noexcept {
  return all;
}

} // namespace adverb::transfer
