// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The monitor any user may have: a userfaultfd (Linux 5.11 on, for user mode only) on the ranges
// that are watched, in write-protect mode with nothing protected. No page ever faults for it; the
// kernel sends an event for each change of a mapping, and holds its caller until that is read.
//
// It hears munmap() and what unmaps within the C library, mremap(), a mapping over another,
// MADV_DONTNEED, MADV_FREE and MADV_REMOVE: tried on 6.1 to 6.18. It does not hear mprotect(),
// which changes no memory, nor what is done to a file: fallocate() and ftruncate() of a memfd. So
// shared and file mappings are not watched. A program that has a userfaultfd of its own there comes
// first; one that wants the range later is refused by the kernel (EBUSY) where stock is not.
//
// What is watched is a mapping of its own to the kernel: more lines in /proc/self/maps, and
// mremap() across its ends fails with EFAULT, for which there is forget().
//
// Before a caller goes on it is only known whose descriptor it waits for, as to read the event lets
// it go. So each stripe of addresses has a descriptor of its own, opened when first needed.
//
// The reader is a thread of its own that takes no lock and allocates nothing: whoever holds any may
// be the caller that waits for it. It sleeps while nothing changes.
#pragma once

#include "memory/monitor.h"
#include "memory/own_thread.h"

#include <array>
#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace adverb::memory {

class UserfaultMonitor final : public Monitor {
public:
  explicit UserfaultMonitor(MonitorHooks hooks) : hooks_(std::move(hooks)) {}
  /// Nobody may be changing what was watched. The process's own is never destroyed.
  ~UserfaultMonitor() override;

  bool watch(Range what, Range within) override;
  void unwatch(Range what) noexcept override;
  bool forget(Range what) noexcept override;

private:
  static constexpr uintptr_t granule = 2UL << 20; // bytes, aligned, that are watched together
  static constexpr size_t idle_max = 64;          // of which nothing is watched any more

  struct Part {
    Range range; // of the granule, of which all changes are heard
    Range told;  // what the kernel was told of; what was unmapped within it may be another by now
    size_t users = 0;
    std::list<uintptr_t>::iterator place; // in one of the lists
  };
  using Held = std::lock_guard<Mutex>;

  bool open(const Held& held);
  bool open_stripe(unsigned stripe, const Held& held);
  uintptr_t tell_kernel(Range what, const Held& held);
  void take_back(Range what, const Held& held) noexcept;
  void tell_kernel_no_more(Range what, const Held& held) noexcept;
  int start(const Held& held);
  void close_all() noexcept;
  void drop_idle(size_t most, const Held& held) noexcept;
  void hear(const Held& held);
  bool unregister(Range what) noexcept;
  void read(unsigned stripe) noexcept;
  void leave_moved(int fd, Range to) noexcept;
  void leave_all(Range what) noexcept;
  void serve() noexcept;

  MonitorHooks hooks_;
  Mutex lock_;
  bool tried_ = false;
  std::array<Atomic<int>, stripe_count> fds_{}; // 0: none; one that there is stays
  Atomic<bool> moved_{false};                   // something that was watched has, at some time
  int epoll_ = -1;                              // of all of them
  int stop_ = -1;                               // an eventfd by which the reader ends
  std::unique_ptr<OwnThread> reader_;           // null: nobody has asked for it
  uint64_t seen_ = 0;
  std::map<uintptr_t, Part> parts_; // by the granule's address
  std::list<uintptr_t> idle_;       // granules without users, idle longest first
  std::list<uintptr_t> in_use_;     // a granule moves between the lists and takes its node along
  struct Refused {
    Range range;
    std::chrono::steady_clock::time_point until;
  };
  Refused refused_; // the last range that cannot be watched: not to be asked for each request
};

} // namespace adverb::memory
