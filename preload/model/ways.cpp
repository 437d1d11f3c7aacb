// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/ways.h"

namespace adverb::steering {
#define WAY(name, words) extern const WayFunctions name##_way;
#include "steering/ways.def"
#undef WAY
} // namespace adverb::steering

namespace adverb::model {

steering::WayTable ways() noexcept {
  using namespace steering;
#define WAY(name, words)                                                                           \
  static constexpr WayRow name##_row{#name, words, observe::Counter::posts_##name, name##_way};
#include "steering/ways.def"
#undef WAY
#define WAY(name, words) &name##_row,
  static constexpr const WayRow* table[] = {
#include "steering/ways.def"
  };
#undef WAY
  return table;
}

} // namespace adverb::model
