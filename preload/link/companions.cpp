// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/companions.h"
#include "link/packet_companion.h"
#include "link/rc_companion.h"
#include "world/world.h"

#include <utility>

namespace adverb::link {

std::shared_ptr<Companion> create_companion(World& world, std::shared_ptr<Device> device,
                                            Channel::Role role, std::shared_ptr<Protocol> protocol,
                                            uint32_t credits, const LocalQp* packets) {
  std::shared_ptr<Companion> made;
  if (packets != nullptr)
    made = PacketCompanion::make(world, std::move(device), role, std::move(protocol), credits,
                                 *packets);
  else
    made = RcCompanion::make(world, std::move(device), role, std::move(protocol), credits);
  if (made)
    world.counters.count(observe::Counter::companions);
  return made;
}

} // namespace adverb::link
