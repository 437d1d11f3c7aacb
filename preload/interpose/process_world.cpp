// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "interpose/process_world.h"
#include "interpose/boundary.h"
#include "interpose/heap.h"
#include "link/links.h"
#include "memory/copy.h"
#include "memory/dispositions.h"
#include "model/objects.h"
#include "observe/exit.h"
#include "registration/budget.h"
#include "service/thread.h"

#include <new>
#include <pthread.h>

namespace adverb::interpose {
namespace {

struct Process {
  SteadyClock clock;
  KernelEntropy entropy;
  service::Thread service{world};
  World world{{.clock = clock, .entropy = entropy, .service = service, .edge = &process_edge()}};
};

void await_probes() noexcept;

// In static memory, so that no allocator of the program's is disturbed before main().
Process& process() noexcept {
  alignas(Process) static std::byte memory[sizeof(Process)];
  static Process& made = [&]() -> Process& {
    auto* fresh = new (memory) Process;
    observe::finish_at_exit(fresh->world.page, await_probes);
    return *fresh;
  }();
  return made;
}

// What they have to say is said before the process ends.
void await_probes() noexcept {
  if (link::Links* links = process().world.parts.links.made())
    links->await_probes();
}

// Only this thread lives in the child, and any lock may have been held by another: everything is
// abandoned as it stands, nothing is taken, freed or logged.
void in_child() {
  process_heap().in_child();
  Process& mine = process();
  World& world = mine.world;
  world.parts.endpoints.abandon_in_child();
  if (world.page.started()) { // else nothing was ever managed
    process_edge().in_child();
    if (model::Objects* objects = world.parts.objects.made())
      objects->in_child();
    world.parts.objects.keep_in_child();
    world.parts.reload.abandon_in_child();
    if (registration::Budgets* budgets = world.parts.budgets.made())
      budgets->in_child();
    world.parts.budgets.keep_in_child();
    world.parts.staged_receives.abandon_in_child();
    world.parts.monitor.abandon_in_child();
    world.parts.recalls.abandon_in_child();
    world.parts.view_source.abandon_in_child();
    world.parts.links.abandon_in_child();
    world.parts.targets.abandon_in_child();
    mine.service.in_child();
  }
  world.in_child();
}

// By whoever copies, which may be a post: said by the service thread.
void lost_faults() noexcept {
  World& world = process_world();
  boundary(
      [] {},
      [&] {
        world.service.run([] {
          process_world().log.warn(
              "the handlers of SIGSEGV or SIGBUS were replaced past sigaction(): copies to and "
              "from unpinned memory go through the kernel from now on, by {}",
              memory::method());
        });
      });
}

void in_parent() {
  World& world = process_world();
  if (world.page.started())
    world.counters.count(observe::Counter::forks);
}

} // namespace

void caught(const char* what) noexcept {
  World& world = process_world();
  world.counters.count(observe::Counter::exceptions_caught);
  if (what != nullptr)
    world.log.error("internal error: {}", what);
}

World& process_world() noexcept {
  return process().world;
}

void watch_forks() {
  static const int once = pthread_atfork(nullptr, in_parent, in_child);
  (void)once;
  memory::when_lost(lost_faults);
}

} // namespace adverb::interpose
