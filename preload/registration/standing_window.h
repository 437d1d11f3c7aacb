// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A window that a queue pair has lately used and keeps in mind, so that the next request on the
// same bytes takes no lock and no list: its bytes go out of it, or what is brought comes to it.
//
// It is in use until the report that was noted last has been heard; then it may be evicted. Numbers
// of reports are the caller's, and wrap. For one caller at a time, who holds the queue pair's lock.
#pragma once

#include "registration/regions.h"
#include "world/world.h"

#include <cstdint>

#include <infiniband/verbs.h>

namespace adverb::registration {

class StandingWindow {
public:
  // `heard`: the last report that was heard, written by whoever polls. `brings`: the device is to
  // write there.
  StandingWindow(World& world, Regions& regions, const ibv_pd* pd, const Atomic<uint32_t>& heard,
                 bool brings)
      : regions_(regions), pd_(pd), monitor_(world.monitor()), standing_(heard, brings) {}
  StandingWindow(const StandingWindow&) = delete;
  StandingWindow& operator=(const StandingWindow&) = delete;
  ~StandingWindow() { give_back(); }

  // Has `instead` name the window, which is in use until that report. False: it is of other bytes,
  // or it has been evicted.
  [[gnu::always_inline]] bool borrow(const ibv_sge& own, uint32_t report,
                                     ibv_sge& instead) noexcept {
    const uint64_t offset = own.addr - part_.address;
    if (part_.key != own.lkey || offset >= part_.length || own.length - 1 >= part_.length - offset)
      return false;
    // Who evicts it, or ends or changes its region, takes it away first and then looks at the
    // number: one of the two sees the other. Where addresses have come to mean other memory nobody
    // may have taken it away yet.
    const uint32_t before = standing_.until.load(std::memory_order_relaxed);
    standing_.until.store(report);
    if (!standing_.stands.load() || epoch_ != monitor_.epoch()) {
      standing_.until.store(before);
      return false;
    }
    instead = {own.addr, own.length, lkey_};
    return true;
  }
  // It was borrowed and not posted; `asked`: the last report that was asked for.
  void not_borrowed(uint32_t asked) noexcept { standing_.until.store(asked); }
  // The element has just been made usable by that window: the next like it may go by borrow().
  void learn(const ibv_sge& own, Window& window) noexcept {
    const uint64_t epoch = monitor_.epoch(); // what changes from here on is met again
    const Readable known = regions_.stand(pd_, own.lkey, window, standing_, lkey_);
    if (known.key != 0) {
      part_ = known;
      epoch_ = epoch;
    }
  }
  // It is not in use.
  void free_all(uint32_t heard) noexcept { standing_.until.store(heard); }
  void give_back() noexcept {
    part_ = {};
    regions_.end_standing(standing_);
  }

private:
  Regions& regions_;
  const ibv_pd* pd_;
  Readable part_; // by the addresses work requests use; `data` is not set
  uint32_t lkey_ = 0;
  uint64_t epoch_ = 0; // of the monitor's, when the window was found to stand
  const memory::Monitor& monitor_;
  Standing standing_;
};

} // namespace adverb::registration
