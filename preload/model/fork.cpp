// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/fork.h"
#include "interpose/dispatch.h"
#include "link/links.h"
#include "model/context.h"
#include "observe/counters.h"
#include "observe/page.h"
#include "registration/staging.h"

#include <mutex>
#include <pthread.h>

namespace adverb::model {
namespace {

// Only this thread lives in the child, and any lock may have been held by another: everything is
// abandoned as it stands, nothing is taken, freed or logged.
void in_child() {
  interpose::forget_all();
  after_fork_child();
  registration::Staging::after_fork_child();
  link::after_fork_child();
  observe::after_fork_child();
}

void in_parent() {
  observe::count(observe::Counter::forks);
}

} // namespace

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, in_parent, in_child); });
}

} // namespace adverb::model
