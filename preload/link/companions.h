// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which kind of companion is made.
#pragma once

#include "link/companion.h"

#include <cstdint>
#include <memory>

namespace adverb::link {

/// Creates the queue pair and its buffers; nullptr and errno when the device cannot. `credits` at
/// most. `packets`: the queue pair of the program by whose path packets are to carry it; null: it
/// is reliable. Service thread.
std::shared_ptr<Companion> create_companion(World& world, std::shared_ptr<Device> device,
                                            Channel::Role role, std::shared_ptr<Protocol> protocol,
                                            uint32_t credits, const LocalQp* packets);

} // namespace adverb::link
