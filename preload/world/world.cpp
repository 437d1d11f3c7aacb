// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "world/world.h"

namespace adverb {

World::World(const Seams& seams)
    : clock(seams.clock), entropy(seams.entropy), trace(seams.clock),
      log(counters, seams.clock, seams.log_sink),
      page(counters, peers, trace, log, !seams.shared_page), provider(log, seams.real),
      service(seams.service), edge(seams.edge), rule_hits_(counters),
      policy_(&rule_hits_, seams.policy) {}

void World::in_child() noexcept {
  policy_.in_child();
  provider.in_child();
  page.in_child();
  log.in_child();
}

} // namespace adverb
