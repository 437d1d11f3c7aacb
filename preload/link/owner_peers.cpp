// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What an owner tells of its peers (peers.h).
#include "link/address.h"
#include "link/owner.h"
#include "link/owner_parts.h"
#include "world/world.h"

#include <algorithm>

namespace adverb::link {

void Owner::meet(const std::shared_ptr<Link>& link) {
  sockaddr_in6 from{};
  const bool known = remote_address(link->connection->fd(), from.sin6_addr) == 0;
  link->who = peers_.meet(observe::PeerRole::initiator, known ? to_text(from) : "unknown",
                          link->peer, link->vouched);
  if (link->trusted)
    link->who->admit(link->vouched ? observe::PeerLevel::vouched : observe::PeerLevel::host);
}

// Something may have changed about it.
void Owner::note(const std::shared_ptr<Link>& link) {
  link->noted = true;
  peers_.publish_soon();
}

void Owner::collect() {
  for (const auto& link : links_) {
    if (std::exchange(link->noted, false)) {
      link->now.links = 1;
      link->now.qps_bound = static_cast<uint64_t>(std::ranges::count_if(
          link->bound, [](const auto& entry) { return entry.second.handle != 0; }));
      link->now.qps_proven = static_cast<uint64_t>(std::ranges::count_if(
          link->bound, [](const auto& entry) { return entry.second.proven; }));
    }
    link->now.channels = static_cast<uint64_t>(
        std::ranges::count_if(link->channels, [](const auto& c) { return !c.end->down(); }));
    link->who->has(link->now);
  }
}

} // namespace adverb::link
