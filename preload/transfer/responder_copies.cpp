// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The responder's copies from and to the program's memory: errands of the service's threads, a few
// of a peer at a time. A request whose copy a barrier has overtaken is judged anew.
#include "memory/copy.h"
#include "transfer/responder.h"
#include "world/world.h"

#include <algorithm>
#include <utility>

namespace adverb::transfer {

void ReplyToken::copy(const Copy& copy) {
  assert(responder_ && (copy.way != Copy::Way::out || copy.bytes <= room().size()));
  Responder& responder = *responder_;
  Responder::Slot& slot = responder.slots_[slot_];
  slot.copy = copy;
  slot.regions = &slot.target->regions();
  responder.channel_->progress().errands().add(slot);
  responder.to_copy_.push_back(slot_);
  slot.copier = std::move(responder_);
  slot.state.store(Responder::State::copying, std::memory_order_relaxed);
}

void Responder::begin_copies() {
  while (copies_ < copies_max && !to_copy_.empty()) {
    ++copies_;
    Slot& slot = slots_[to_copy_.front()];
    to_copy_.erase(to_copy_.begin());
    slot.posted();
  }
}

void Responder::Slot::of_responder(Responder& its) noexcept {
  responder = &its;
  belongs_to(its.channel_->party());
}

void Responder::Slot::posted() noexcept {
  moves(copy.bytes);
  responder->world_.service.post(*this);
}

link::Errand::Of Responder::Slot::of() const noexcept {
  const auto from = reinterpret_cast<uintptr_t>(copy.program);
  return {.target = header.target,
          .regions = regions,
          .key = header.key,
          .from = from,
          .to = from + std::max(copy.bytes, 1U),
          .lands = copy.lands()};
}

// As it was found to be when it was run, and in the same place.
bool Responder::Slot::stands() noexcept {
  Target* const target = responder->target_of(header);
  std::byte* all = nullptr;
  const bool looked_at = copy.way == Copy::Way::nowhere;
  const unsigned right = looked_at ? (row->right == Right::atomic ? IBV_ACCESS_REMOTE_ATOMIC : 0)
                         : copy.lands() ? IBV_ACCESS_REMOTE_WRITE
                                        : IBV_ACCESS_REMOTE_READ;
  return target != nullptr && !target->leaving() && target->allows(row->right) &&
         target->regions().remote(target->pd(), header.key, header.total_address, header.total,
                                  right, all) == 0 &&
         (looked_at || all + (header.address - header.total_address) == copy.program);
}

void Responder::Slot::put_aside() noexcept {
  --responder->copies_;
  responder->begin_copies();
}

void Responder::Slot::again() noexcept {
  ++responder->copies_;
  posted();
}

void Responder::Slot::run() {
  const auto keep = copier;
  keep->copy(*this);
}

void Responder::copy(Slot& slot) {
  using Begun = link::Errands::Begun;
  auto& progress = channel_->progress();
  const Begun begun =
      channel_->down() ? Begun::no : progress.errands().begin(slot, progress.lock());
  if (begun == Begun::aside)
    return;
  const bool good = begun == Begun::yes && make_copy(slot);
  const std::lock_guard hold(progress.lock());
  copied(slot, good);
}

bool Responder::make_copy(const Slot& slot) const noexcept {
  const Copy& copy = slot.copy;
  switch (copy.way) {
  case Copy::Way::out:
    return memory::read(slot.out + slot.filled + sizeof(ReplyHeader), copy.program, copy.bytes);
  case Copy::Way::in:
    return memory::write(copy.program, slot.payload.data(), copy.bytes);
  case Copy::Way::nowhere: { // a byte of each page
    constexpr uintptr_t page = 4096;
    std::byte unused;
    bool good = memory::read(&unused, copy.program, 1);
    for (uint32_t at = page - (reinterpret_cast<uintptr_t>(copy.program) & (page - 1));
         good && at < copy.bytes; at += page)
      good = memory::read(&unused, copy.program + at, 1);
    return good;
  }
  default:
    return memory::write_in_order(copy.program, slot.payload.data(), copy.bytes);
  }
}

void Responder::copied(Slot& slot, bool good) {
  const bool stands = channel_->progress().errands().remove(slot);
  slot.copier.reset();
  --copies_;
  begin_copies();
  Target* const target = target_of(slot.header);
  const bool brought = good && slot.copy.way == Copy::Way::nowhere;
  if (!stands || target == nullptr || brought) { // it is judged anew
    slot.brought = stands && brought;
    if (slot.filled == 0)
      channel_->abandon(std::exchange(slot.out, nullptr));
    slot.state.store(State::waiting, std::memory_order_relaxed);
    return serve_waiting();
  }
  if (good && slot.copy.copied != nullptr)
    slot.copy.copied(world_, *target, slot.header);
  slot.state.store(State::running, std::memory_order_relaxed);
  answer(slot, good ? Status::ok : Status::fault,
         slot.copy.way == Copy::Way::out ? slot.copy.bytes : 0);
  if (finish(slot, target)) {
    std::erase(order_, static_cast<uint32_t>(&slot - slots_.get()));
    take_note();
  }
  serve_waiting();
}

} // namespace adverb::transfer
