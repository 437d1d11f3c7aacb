// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the links know of this room: how large messages are, and who is at a channel's ends.
#pragma once

#include "link/channel.h"
#include "transfer/handler.h"

#include <memory>

namespace adverb::transfer {

inline constexpr uint8_t protocol_id = 0;

// Peers' requests are served from the table.
std::shared_ptr<link::Protocol>
make_protocol(World& world, std::shared_ptr<const Handlers> handlers, Targets& targets);

} // namespace adverb::transfer
