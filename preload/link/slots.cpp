// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/slots.h"
#include "memory/own.h"
#include "world/world.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <sys/mman.h>
#include <utility>

namespace adverb::link {

int Slots::make(Page& page, SlotKind kind, const Held& /*held*/) {
  void* const memory = memory::map_own(slot_page, PROT_READ | PROT_WRITE);
  if (memory == MAP_FAILED)
    return errno;
  madvise(memory, slot_page, MADV_DONTFORK); // what the device has and what is looked at is one
  const provider::Inside inside;
  ibv_mr* const mr = make_room_([&] {
    const auto& real = world_.provider.real();
    switch (kind) {
    case SlotKind::write:
      return real.ibv_reg_mr_iova(pd_, memory, slot_page, slot_address(kind, 0),
                                  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    case SlotKind::read:
      return real.ibv_reg_mr_iova(pd_, memory, slot_page, slot_address(kind, 0),
                                  IBV_ACCESS_REMOTE_READ);
    case SlotKind::atomic:
      return real.ibv_reg_mr_iova(pd_, memory, slot_page, slot_address(kind, 0),
                                  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    default:
      return real.ibv_reg_mr(pd_, memory, slot_page, IBV_ACCESS_LOCAL_WRITE);
    }
  });
  if (mr == nullptr) {
    const int rc = provider::failure();
    munmap(memory, slot_page);
    if (world_.log.every("no-slots", 60))
      world_.log.warn("the device does not register the memory by which peers prove their queue "
                      "pairs (errno {}); peers that have to prove one are refused; raise "
                      "RLIMIT_MEMLOCK, and see `adverb doctor --peer`",
                      rc);
    return rc;
  }
  page = {static_cast<std::byte*>(memory), mr, 0};
  world_.counters.gauge_add(observe::Gauge::pinned_bytes, int64_t{slot_page});
  return 0;
}

int Slots::take(SlotKind kind, Slot& slot) {
  const Held hold(lock_);
  Page& page = page_of(kind);
  if (closed_)
    return EAGAIN;
  if (const int rc = page.mr == nullptr ? make(page, kind, hold) : 0; rc != 0)
    return rc;
  const auto index = static_cast<uint32_t>(std::countr_one(page.taken));
  if (index == slots_of_a_kind)
    return EAGAIN;
  page.taken |= uint64_t{1} << index;
  std::byte* const memory = page.memory + index * slot_bytes;
  memset(memory, 0, slot_bytes);
  slot = {kind, index, page.mr->rkey, page.mr->lkey,
          is_remote(kind) ? slot_address(kind, index) : reinterpret_cast<uint64_t>(memory)};
  return 0;
}

void Slots::give(const Slot& slot) noexcept {
  const Held hold(lock_);
  if (Page* const page = page_of(slot))
    page->taken &= ~(uint64_t{1} << slot.index);
}

// Null: it has been closed since, and perhaps there is another.
Slots::Page* Slots::page_of(const Slot& slot) noexcept {
  Page& page = page_of(slot.kind);
  return page.mr != nullptr && page.mr->rkey == slot.rkey ? &page : nullptr;
}

// The device writes meanwhile, perhaps: what is torn proves nothing, and is looked at again.
wire::Share Slots::look(const Slot& slot) noexcept {
  const Held hold(lock_);
  wire::Share share{};
  if (const Page* const page = page_of(slot)) {
    const volatile std::byte* const at = page->memory + slot.index * slot_bytes;
    for (size_t i = 0; i < share.size(); ++i)
      share[i] = static_cast<uint8_t>(at[i]);
  }
  return share;
}

void Slots::put(const Slot& slot, const wire::Share& share) noexcept {
  const Held hold(lock_);
  if (Page* const page = page_of(slot))
    memcpy(page->memory + slot.index * slot_bytes, share.data(), share.size());
}

void Slots::close() noexcept {
  const Held hold(lock_);
  closed_ = true;
  const provider::Inside inside;
  for (Page& page : pages_) {
    if (page.mr == nullptr)
      continue;
    world_.provider.real().ibv_dereg_mr(page.mr);
    munmap(page.memory, slot_page);
    world_.counters.gauge_add(observe::Gauge::pinned_bytes, -int64_t{slot_page});
    page = {};
  }
}

void Slots::reopen() noexcept {
  const Held hold(lock_);
  closed_ = false;
}

} // namespace adverb::link
