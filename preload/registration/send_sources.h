// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a queue pair keeps for requests whose bytes go out of unpinned memory, so that the next one
// like the last takes no lock and no list: staging slots, the regions it has lately copied from,
// and a window it has lately sent from.
//
// Slots are used in turn, and are free again when the report that was noted for them has been
// heard; so is the window, which may be evicted then. Numbers of reports are the caller's, and
// wrap. For one caller at a time, who holds the queue pair's lock.
#pragma once

#include "memory/copy.h"
#include "registration/regions.h"
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
        standing_(heard) {}
  SendSources(const SendSources&) = delete;
  SendSources& operator=(const SendSources&) = delete;
  ~SendSources() { give_back(); }

  // Whether an element of so many bytes may go by copy(), else by borrow().
  bool copies(uint32_t bytes) const noexcept { return bytes - 1 < ready_; }
  // Where the bytes of such an element lie; null: the region is not known.
  const std::byte* place(const ibv_sge& own) const noexcept {
    const Readable& from = place_of(*kept_, own.lkey);
    const uint64_t offset = own.addr - from.address;
    return from.key == own.lkey && from.as_of == regions_.changes() && offset < from.length &&
                   own.length <= from.length - offset
               ? from.data + offset
               : nullptr;
  }
  // Copies the bytes of such an element to the next slot, which `instead` then names. False: the
  // region is not known, the slot is in use, or the bytes cannot be read, which others find out
  // better. Whoever deregisters the region meanwhile makes a mistake that harms nobody.
  [[gnu::always_inline]] bool copy(const ibv_sge& own, ibv_sge& instead) noexcept {
    Kept& kept = *kept_;
    const std::byte* const from = place(own);
    const uint32_t slot = kept.next % slots;
    if (from == nullptr || static_cast<int32_t>(kept.until[slot] - standing_.heard.load()) > 0)
      return false;
    std::byte* const to = kept.block.data + size_t{slot} * slot_bytes;
    if (!memory::read(to, from, own.length))
      return false;
    instead = {reinterpret_cast<uintptr_t>(to), own.length, kept.block.lkey};
    world_.counters.count(observe::Counter::staging_copies);
    world_.counters.count(observe::Counter::staging_bytes, own.length);
    return true;
  }
  // What was copied last is in use until that report.
  void copied_until(uint32_t report) noexcept { kept_->until[kept_->next++ % slots] = report; }

  // Has `instead` name the window, which is in use until that report. False: it is another's bytes,
  // or it has been evicted.
  [[gnu::always_inline]] bool borrow(const ibv_sge& own, uint32_t report,
                                     ibv_sge& instead) noexcept {
    const uint64_t offset = own.addr - window_.address;
    if (window_.key != own.lkey || offset >= window_.length ||
        own.length - 1 >= window_.length - offset)
      return false;
    // Who evicts it, or ends or changes its region, takes it away first and then looks at the
    // number: one of the two sees the other.
    standing_.until.store(report);
    if (!standing_.stands.load())
      return false;
    instead = {own.addr, own.length, window_lkey_};
    return true;
  }
  // It was not posted; `asked`: the last report that was asked for.
  void not_borrowed(uint32_t asked) noexcept { standing_.until.store(asked); }

  // The element has just been made usable in another way, if by a window by that one: the next
  // like it may go by copy() or borrow().
  void learn(const ibv_sge& own, Window* window) noexcept;
  // Nothing is in use.
  void free_all(uint32_t heard) noexcept {
    if (kept_ != nullptr)
      kept_->until.fill(heard);
    standing_.until.store(heard);
  }
  // The same, and nothing is kept.
  void give_back() noexcept;

private:
  static constexpr size_t parts = 4;
  struct Kept {
    Block block;
    uint32_t next = 0;
    std::array<uint32_t, slots> until{};
    std::array<Readable, parts> known{};
  };
  // Virtual keys differ in what is above their lowest 8 bits, which a device counts for itself.
  static Readable& place_of(Kept& kept, uint32_t key) noexcept {
    return kept.known[key / 256 % parts];
  }
  void learn_copy(const ibv_sge& own) noexcept;
  void learn_window(const ibv_sge& own, Window& window) noexcept;

  World& world_;
  Regions& regions_;
  Staging& staging_;
  const ibv_pd* pd_;
  const uint32_t most_;        // bytes of an element that may be copied
  uint32_t ready_ = 0;         // the same, now
  std::unique_ptr<Kept> kept_; // with a block, or null
  Readable window_;            // by the addresses work requests use; `data` is not set
  uint32_t window_lkey_ = 0;
  Standing standing_; // of that window
};

} // namespace adverb::registration
