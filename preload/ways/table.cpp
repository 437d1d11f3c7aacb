// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "ways/table.h"

namespace adverb::ways {

#define WAY(name, words) extern const steering::WayFunctions name##_way;
#include "ways/ways.def"
#undef WAY

steering::WayTable table() noexcept {
  using steering::WayRow;
#define WAY(name, words)                                                                           \
  static constexpr WayRow name##_row{#name, words, observe::Counter::posts_##name, name##_way};
#include "ways/ways.def"
#undef WAY
#define WAY(name, words) &name##_row,
  static constexpr const WayRow* rows[] = {
#include "ways/ways.def"
  };
#undef WAY
  return rows;
}

} // namespace adverb::ways
