// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Where peers prove that a queue pair is theirs: memory of adverb's own in the program's protection
// domain, which one writes to, or reads from, over that queue pair; and where such bytes lie at
// this end, as staging may be used up by what waits for them.
//
// A page for each kind, made when the first is asked for, under addresses that are the same
// everywhere and no program's: such as no processor forms (`local` ones have their own). So a peer
// is told a key alone, and one that lies of it earns a NAK of the device but has nothing written
// into a program's memory. Who may write them may not read them.
#pragma once

#include "link/wire.h"
#include "world/sync.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include <infiniband/verbs.h>

namespace adverb {
class World;
}

namespace adverb::link {

// Bits 47 to 63 of an address are alike where pages have four levels, and 56 to 63 where they have
// five.
inline constexpr uint64_t slot_base = 0x4ADB'0000'0000'0000;
inline constexpr size_t slot_page = 4096;
inline constexpr size_t slot_bytes = 64;
inline constexpr uint32_t slots_of_a_kind = slot_page / slot_bytes;
inline constexpr size_t slot_word_bytes = 8;

// Of `atomic` a peer reads the first word, by adding nothing to it: for queue pairs that allow
// nothing else.
enum class SlotKind : uint32_t { none = 0, write = 1, read = 2, local = 3, atomic = 4 };

// A peer has them at an address that slot_address() knows.
constexpr bool is_remote(SlotKind kind) noexcept {
  return kind == SlotKind::write || kind == SlotKind::read || kind == SlotKind::atomic;
}

// What a queue pair that allows its peer so much can be used by; `none`: by nothing.
constexpr SlotKind slot_kind_for(unsigned access, unsigned responder_resources) noexcept {
  if ((access & IBV_ACCESS_REMOTE_WRITE) != 0)
    return SlotKind::write;
  if (responder_resources == 0)
    return SlotKind::none;
  if ((access & IBV_ACCESS_REMOTE_READ) != 0)
    return SlotKind::read;
  return (access & IBV_ACCESS_REMOTE_ATOMIC) != 0 ? SlotKind::atomic : SlotKind::none;
}

// The address that the peer's device knows a slot by; `kind` is_remote(), `index` below
// slots_of_a_kind.
constexpr uint64_t slot_address(SlotKind kind, uint32_t index) noexcept {
  return slot_base + (static_cast<uint64_t>(kind) - 1) * slot_page + index * slot_bytes;
}

// Of one protection domain. Thread-safe.
class Slots {
public:
  // Calls what it is given until that succeeds, or nothing can be done for it to: memory that may
  // be pinned is short, perhaps.
  using MakeRoom = std::function<ibv_mr*(const std::function<ibv_mr*()>& reg)>;
  Slots(World& world, ibv_pd* pd, MakeRoom make_room)
      : world_(world), pd_(pd), make_room_(std::move(make_room)) {}
  ~Slots() { close(); }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  struct Slot {
    SlotKind kind = SlotKind::none;
    uint32_t index = 0;
    uint32_t rkey = 0;
    uint32_t lkey = 0;
    uint64_t address = 0; // by which the device knows it
  };
  // An empty one, all zero. errno value: EAGAIN, all are taken, or the domain is closed; else the
  // device does not register it.
  int take(SlotKind kind, Slot& slot);
  void give(const Slot& slot) noexcept;
  // For who has it: what is in it, and what the peer shall find there.
  wire::Share look(const Slot& slot) noexcept;
  void put(const Slot& slot, const wire::Share& share) noexcept;

  // Before the domain goes; nothing is taken until reopen().
  void close() noexcept;
  void reopen() noexcept;

private:
  struct Page {
    std::byte* memory = nullptr;
    ibv_mr* mr = nullptr;
    uint64_t taken = 0; // a bit for each
  };
  static_assert(slots_of_a_kind == 64);
  using Held = std::lock_guard<Mutex>; // of lock_
  int make(Page& page, SlotKind kind, const Held& held);
  Page& page_of(SlotKind kind) noexcept { return pages_[static_cast<size_t>(kind) - 1]; }
  Page* page_of(const Slot& slot) noexcept;

  World& world_;
  ibv_pd* pd_;
  const MakeRoom make_room_;
  Mutex lock_;
  std::array<Page, 4> pages_;
  bool closed_ = false;
};

} // namespace adverb::link
