// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The lists of libadverb-toy.so: the library's, and a row more of each.
#include "toy_handlers.h"
#include "ways/table.h"

#include <array>

namespace adverb::ways {

using namespace steering;
extern const WayFunctions toy_way;
#define WAY(name, words) extern const WayFunctions name##_way;
#include "ways/ways.def"
#undef WAY

WayTable table() noexcept {
  static constexpr WayRow toy_row{"toy", "requests carried in small pieces",
                                  observe::Counter::posts_queued, toy_way};
#define WAY(name, words)                                                                           \
  static constexpr WayRow name##_row{#name, words, observe::Counter::posts_##name, name##_way};
#include "ways/ways.def"
#undef WAY
#define WAY(name, words) &name##_row,
  static constexpr const WayRow* rows[] = {
      &toy_row,
#include "ways/ways.def"
  };
#undef WAY
  return rows;
}

} // namespace adverb::ways

namespace adverb::transfer {

#define HANDLER(name, number, version, right, key, order, shape)                                   \
  void run_##name(const Request& request, ReplyToken token);
#include "transfer/handlers.def"

std::span<const HandlerRow* const> handler_list() noexcept {
#define HANDLER(name, number, version, right, key, order, shape)                                   \
  static constexpr HandlerRow name##_row{number,   #name,        version,      Right::right,       \
                                         Key::key, Order::order, Shape::shape, run_##name};
#include "transfer/handlers.def"
  static constexpr auto all = std::to_array<const HandlerRow*>({
#define HANDLER(name, number, version, right, key, order, shape) &name##_row,
#include "transfer/handlers.def"
      &toy::write_row,
      &toy::read_row,
  });
  return all;
}

} // namespace adverb::transfer
