// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "transfer/verdicts.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace adverb::transfer {

using steering::KeyVerdict;

// Zeroes from calloc() are empty slots, and pages of a table that few keys are in stay untouched.
Verdicts::Verdicts() : slots_(static_cast<Slot*>(calloc(slots_max, sizeof(Slot)))) {
  if (!slots_)
    throw std::bad_alloc();
}

void Verdicts::Free::operator()(Slot* slots) const noexcept {
  free(slots);
}

void Verdicts::write(Slot& slot, uint32_t key, const KeyVerdict& verdict) noexcept {
  Words words{};
  memcpy(words.all.data(), &verdict, sizeof verdict);
  const uint32_t version = slot.version.load(std::memory_order_relaxed);
  slot.version.store(version + 1, std::memory_order_relaxed);
  slot.key.store(key, std::memory_order_release);
  for (size_t i = 0; i < words.all.size(); ++i)
    slot.words[i].store(words.all[i], std::memory_order_release);
  slot.version.store(version + 2, std::memory_order_release);
  changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

Verdicts::Slot* Verdicts::of(uint32_t key) const noexcept {
  const size_t bucket = bucket_of(key);
  for (size_t i = bucket; i < bucket + bucket_slots; ++i)
    if (read(slots_[i], key).known())
      return &slots_[i];
  return nullptr;
}

void Verdicts::learn(uint32_t key, Kind kind, uint32_t served) noexcept {
  const std::lock_guard hold(lock_);
  likely_virtual_.store(kind == Kind::virtual_key, std::memory_order_relaxed);
  Slot* slot = of(key);
  if (slot != nullptr) {
    const KeyVerdict known = read(*slot, key);
    if (known.kind == kind && (served == KeyVerdict::not_asked || served == known.served))
      return;
  }
  any_served_ = any_served_ || served != KeyVerdict::not_asked;
  const size_t bucket = bucket_of(key);
  for (size_t i = bucket; slot == nullptr && i < bucket + bucket_slots; ++i)
    if (!read(slots_[i], slots_[i].key.load(std::memory_order_relaxed)).known())
      slot = &slots_[i];
  if (slot == nullptr)
    slot = &slots_[bucket + victim_++ % bucket_slots];
  if (++epoch_ == 0)
    ++epoch_;
  write(*slot, key, {.epoch = epoch_, .kind = kind, .served = served});
}

// All slots are looked at: this is for notices, of which few come.
std::vector<uint32_t> Verdicts::forget_served(std::span<const uint32_t> ended) {
  std::vector<uint32_t> real;
  const std::lock_guard hold(lock_);
  if (!any_served_)
    return real;
  for (size_t i = 0; i < slots_max; ++i) {
    const uint32_t key = slots_[i].key.load(std::memory_order_relaxed);
    const KeyVerdict known = read(slots_[i], key);
    if (!known.is_served() || std::ranges::find(ended, known.served) == ended.end())
      continue;
    real.push_back(key);
    if (++epoch_ == 0)
      ++epoch_;
    write(slots_[i], key, {.epoch = epoch_, .kind = known.kind});
  }
  return real;
}

void Verdicts::forget(uint32_t key) noexcept {
  const std::lock_guard hold(lock_);
  if (Slot* slot = of(key))
    write(*slot, key, {});
}

void Verdicts::forget_real() noexcept {
  const std::lock_guard hold(lock_);
  for (size_t i = 0; i < slots_max; ++i) {
    const uint32_t key = slots_[i].key.load(std::memory_order_relaxed);
    if (read(slots_[i], key).kind == Kind::real)
      write(slots_[i], key, {});
  }
}

} // namespace adverb::transfer
