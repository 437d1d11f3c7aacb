// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "interpose/constructor.h"
#include "interpose/boundary.h"
#include "interpose/process_world.h"
#include "model/start.h"

#include <atomic>

namespace adverb::interpose {
namespace {

std::atomic<bool> constructed{false};

// Does nothing but note that it ran: the program's own constructors, other preloads and their
// allocators are not to be disturbed before main().
__attribute__((constructor)) void note() {
  constructed.store(true, std::memory_order_release);
}

} // namespace

bool active() noexcept {
  if (!constructed.load(std::memory_order_acquire))
    return false;
  static const bool on = boundary([] { return false; },
                                  [] {
                                    watch_forks();
                                    return model::start(process_world());
                                  });
  return on;
}

} // namespace adverb::interpose
