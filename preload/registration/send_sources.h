// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a queue pair keeps for requests whose bytes go out of unpinned memory, so that the next one
// like the last takes no lock and no list: staging slots, the regions it has lately copied from,
// and a window it has lately sent from.
//
// Slots are used in turn, and are free again when the report that was noted for them has been
// heard; so is the window, which may be evicted then. Numbers of reports are the caller's, and
// wrap. For one caller at a time, who holds the queue pair's lock.
#pragma once

#include "registration/regions.h"
#include "registration/standing_window.h"
#include "world/world.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

#include <infiniband/verbs.h>

namespace adverb::registration {

class SendSources {
public:
  static constexpr uint32_t slot_bytes = 256;
  static constexpr uint32_t slots = 16;

  // `copy_below`: bytes below which an element is staged rather than given a window. `heard`: the
  // last report that was heard, written by whoever polls.
  SendSources(World& world, Regions& regions, Staging& staging, const ibv_pd* pd,
              uint64_t copy_below, const Atomic<uint32_t>& heard)
      : world_(world), regions_(regions), staging_(staging), pd_(pd),
        most_(static_cast<uint32_t>(
            std::min<uint64_t>(slot_bytes, std::max<uint64_t>(copy_below, 1) - 1))),
        heard_(heard), window_(world, regions, pd, heard, false) {}
  SendSources(const SendSources&) = delete;
  SendSources& operator=(const SendSources&) = delete;
  ~SendSources();

  // Whether an element of so many bytes may go by begin(), else by borrow().
  bool copies(uint32_t bytes) const noexcept { return bytes - 1 < ready_; }
  // One under way, from the program's bytes to a slot that is nobody else's until end().
  struct Copy {
    std::byte* to;
    const std::byte* from;
    uint32_t bytes;
    uint32_t slot;
  };
  // Has `copy` name where the bytes of such an element lie, and the next slot. False: the region is
  // not known, or the slot is in use, which others find out better. The copy is the caller's to
  // make, without locks. Whoever deregisters the region meanwhile makes a mistake that harms
  // nobody.
  [[gnu::always_inline]] bool begin(const ibv_sge& own, Copy& copy) noexcept {
    Kept& kept = *kept_;
    const Readable& known = place_of(kept, own.lkey);
    const uint64_t offset = own.addr - known.address;
    const uint32_t slot = kept.next % slots;
    if (known.key != own.lkey || known.as_of != regions_.changes() || offset >= known.length ||
        own.length > known.length - offset || kept.copying[slot] ||
        static_cast<int32_t>(kept.until[slot] - heard_.load()) > 0)
      return false;
    ++kept.next;
    kept.copying[slot] = true;
    copy = {kept.block.data + size_t{slot} * slot_bytes, known.data + offset, own.length, slot};
    return true;
  }
  // What names the bytes when they have been copied.
  ibv_sge element(const Copy& copy) noexcept {
    world_.counters.count(observe::Counter::staging_copies);
    world_.counters.count(observe::Counter::staging_bytes, copy.bytes);
    return {reinterpret_cast<uintptr_t>(copy.to), copy.bytes, kept_->block.lkey};
  }
  // The slot is in use until that report.
  [[gnu::always_inline]] void end(const Copy& copy, uint32_t report) noexcept {
    kept_->until[copy.slot] = report;
    kept_->copying[copy.slot] = false;
    if (ending_) [[unlikely]]
      give_back();
  }

  // The same by the window (StandingWindow::borrow()).
  [[gnu::always_inline]] bool borrow(const ibv_sge& own, uint32_t report,
                                     ibv_sge& instead) noexcept {
    return window_.borrow(own, report, instead);
  }
  void not_borrowed(uint32_t asked) noexcept { window_.not_borrowed(asked); }

  // The element has just been made usable in another way, if by a window by that one: the next
  // like it may go by begin() or borrow().
  void learn(const ibv_sge& own, Window* window) noexcept;
  // Nothing is in use.
  void free_all(uint32_t heard) noexcept {
    if (kept_ != nullptr)
      kept_->until.fill(heard);
    window_.free_all(heard);
  }
  // The same, and nothing is kept, when the copies under way have ended.
  void give_back() noexcept;

private:
  static constexpr size_t parts = 4;
  struct Kept {
    Block block;
    uint32_t next = 0;
    std::array<bool, slots> copying{};
    std::array<uint32_t, slots> until{};
    std::array<Readable, parts> known{};
  };
  // Virtual keys differ in what is above their lowest 8 bits, which a device counts for itself.
  static Readable& place_of(Kept& kept, uint32_t key) noexcept {
    return kept.known[key / 256 % parts];
  }
  void learn_copy(const ibv_sge& own) noexcept;

  World& world_;
  Regions& regions_;
  Staging& staging_;
  const ibv_pd* pd_;
  const uint32_t most_;        // bytes of an element that may be copied
  uint32_t ready_ = 0;         // the same, now
  bool ending_ = false;        // nothing is to be kept
  std::unique_ptr<Kept> kept_; // with a block, or null
  const Atomic<uint32_t>& heard_;
  StandingWindow window_;
};

} // namespace adverb::registration
