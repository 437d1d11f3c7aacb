// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a seeker tells of those it asks (peers.h).
#include "link/seeker.h"
#include "link/seeker_parts.h"
#include "world/world.h"

#include <algorithm>
#include <map>

namespace adverb::link {

using observe::PeerLevel;
using Number = Peer::Number;
using wire::Answer;

std::shared_ptr<Peer> Seeker::meet(const std::string& host, const wire::Id& process, bool vouched) {
  auto who = peers_.meet(observe::PeerRole::owner, host, process, vouched);
  who->admit(vouched                              ? PeerLevel::vouched
             : world_.policy().link().key.empty() ? PeerLevel::host
                                                  : PeerLevel::key);
  return who;
}

// Its answer to a hello; where that is the broker's it names no process.
void Seeker::note_refused(const std::string& host, const wire::HelloAck& ack) {
  const bool wrong_key = ack.answer == 0 && !world_.policy().link().key.empty();
  const auto answer = static_cast<Answer>(ack.answer);
  if (answer == Answer::no_such_qp)
    return;
  peers_.meet(observe::PeerRole::owner, host, ack.process, false)
      ->count(wrong_key                        ? Number::auth_failures
              : answer == Answer::no_resources ? Number::bound_links
                                               : Number::hellos_refused);
}

void Seeker::collect() {
  std::map<std::shared_ptr<Link>, Peer::Now> links;
  for (const auto& [name, host] : hosts_)
    for (const auto& link : host->links)
      links[link];
  // Those whose connections are lost are no host's meanwhile.
  for (const auto& [handle, asked] : bound_) {
    const auto link = asked.link.lock();
    if (!link || !link->ready || link->ended)
      continue;
    Peer::Now& now = links[link];
    now.qps_bound += asked.remote_handle != 0 ? 1 : 0;
    now.qps_proven += asked.proven ? 1 : 0;
  }
  for (auto& [link, now] : links) {
    now.links = 1;
    now.channels = static_cast<uint64_t>(std::ranges::count_if(link->paths, [](const auto& entry) {
      return entry.second.up && !entry.second.channel->down();
    }));
    link->who->has(now);
  }
}

} // namespace adverb::link
