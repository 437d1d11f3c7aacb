// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What processes, queue pairs and connections are known by on the wire.
#pragma once

#include "link/wire.h"
#include "world/entropy.h"

#include <infiniband/verbs.h>

namespace adverb::link {

// Of processes, and the nonces that are proven with.
wire::Id random_id(Entropy& entropy);

wire::Id id_of(const ibv_gid& gid);

} // namespace adverb::link
