// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The policy that `adverb plan --policy` prints for a link.
#pragma once

#include "reliability/choose.h"

#include <cstdint>
#include <string>

namespace adverb::tools {

// Of "staging", as much as a path needs that is to carry so many bytes in a round trip while it
// loses such a share of its packets; or as much as can be of use.
uint64_t staging_of(uint64_t bytes_in_round_trip, double loss, uint64_t mtu);

// Of the transfer only what says of the link counts: round trip, bandwidth, loss, packets.
std::string policy_of(const reliability::Transfer& link);

} // namespace adverb::tools
