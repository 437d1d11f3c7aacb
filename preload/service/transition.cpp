// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "world/transition.h"
#include "service/thread.h"

namespace adverb::transition {
namespace {
std::atomic<World*> used{nullptr};

// Of a test or a tool that makes none.
struct Fallback {
  SteadyClock clock;
  KernelEntropy entropy;
  service::Thread service{world};
  World world{{clock, entropy, service}};
};
} // namespace

World& world() noexcept {
  if (World* now = used.load(std::memory_order_acquire))
    return *now;
  static auto& of_a_test = *new Fallback;
  return of_a_test.world;
}

void use(World& world) noexcept {
  observe::transition::use(world.counters, world.log, world.page);
  policy::transition::use(world.policy_source());
  provider::transition::use(world.provider);
  used.store(&world, std::memory_order_release);
}

} // namespace adverb::transition
