// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/identity.h"

#include <cstring>

namespace adverb::link {

wire::Id random_id(Entropy& entropy) {
  wire::Id id;
  entropy.fill(id.data(), id.size());
  return id;
}

wire::Id id_of(const ibv_gid& gid) {
  wire::Id id;
  memcpy(id.data(), gid.raw, id.size());
  return id;
}

} // namespace adverb::link
