// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The monitor of hosts with adverb.ko (kernel/watch.c): a notifier of the address space looks into
// what is watched when the kernel has taken pages away, and the caller goes on when this has heard.
//
// It hears all that userfault.h does, of any mapping, and mprotect(), and what is done to files
// that are mapped: holes, and ends that are cut. Nothing is a mapping of its own for it, so
// mremap() goes on as it did, and a program's own userfaultfd is in nobody's way.
//
// What io_uring's workers change for a program is heard of, but not waited for.
//
// The reader, a thread of its own, takes no lock and allocates nothing: whoever holds any may be
// the caller that waits for it. Would it be late all the same, a caller goes on after a second and
// what recalls may take.
#pragma once

#include "memory/monitor.h"
#include "memory/own_thread.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

namespace adverb::memory {

class ModuleMonitor final : public Monitor {
public:
  /// Null: there is no such module, it does not fit, or this user may not use it. `recall_wait`:
  /// what `before` takes at most.
  static std::unique_ptr<ModuleMonitor> open(MonitorHooks hooks,
                                             std::chrono::milliseconds recall_wait);
  /// Nobody may be changing what was watched. The process's own is never destroyed.
  ~ModuleMonitor() override;

  bool watch(Range what, Range within) override;
  void unwatch(Range what) noexcept override;

private:
  struct Watch {
    size_t users = 0;
    uint32_t number = 0; // the module's
  };
  using Held = std::lock_guard<Mutex>;

  ModuleMonitor(MonitorHooks hooks, int fd) : hooks_(std::move(hooks)), fd_(fd) {}
  bool start(const Held& held);
  void serve() noexcept;
  void hear_no_more() noexcept;

  const MonitorHooks hooks_;
  const int fd_; // of /dev/adverb
  Mutex lock_;
  bool tried_ = false;
  Atomic<bool> deaf_{false}; // the reader has ended
  int stop_ = -1;            // an eventfd by which the reader ends
  OwnThread reader_;
  std::map<std::pair<uintptr_t, uintptr_t>, Watch> watches_; // by the whole pages
};

} // namespace adverb::memory
