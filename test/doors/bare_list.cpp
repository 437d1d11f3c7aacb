// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The list of libadverb-bare.so: the library's without the way by the peer's CPU.
#include "ways/table.h"

namespace adverb::ways {

using namespace steering;
extern const WayFunctions grant_way;
extern const WayFunctions offload_way;

WayTable table() noexcept {
  static constexpr WayRow grant_row{"grant", "", observe::Counter::posts_grant, grant_way};
  static constexpr WayRow offload_row{"offload", "", observe::Counter::posts_offload, offload_way};
  static constexpr const WayRow* rows[] = {&grant_row, &offload_row};
  return rows;
}

} // namespace adverb::ways
