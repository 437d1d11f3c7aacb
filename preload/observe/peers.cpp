// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "observe/peers.h"

#include <cstring>

namespace adverb::observe {

namespace {

using Words = std::array<uint64_t, PeerSlot::words>;

void write_words(PeerSlot& slot, const Words& words) noexcept {
  const uint64_t sequence = slot.sequence.load(std::memory_order_relaxed);
  slot.sequence.store(sequence + 1, std::memory_order_relaxed);
  for (size_t i = 0; i < words.size(); ++i)
    slot.entry[i].store(words[i], std::memory_order_release);
  slot.sequence.store(sequence + 2, std::memory_order_release);
}

bool read_words(const PeerSlot& slot, Words& words) noexcept {
  const uint64_t before = slot.sequence.load(std::memory_order_acquire);
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = slot.entry[i].load(std::memory_order_acquire);
  return before != 0 && before % 2 == 0 && slot.sequence.load(std::memory_order_relaxed) == before;
}

} // namespace

bool read_peer(const PeerSlot& slot, PeerEntry& out) noexcept {
  Words words;
  if (!read_words(slot, words))
    return false;
  std::memcpy(&out, words.data(), sizeof out);
  return true;
}

class PeerTable::Busy {
public:
  explicit Busy(std::atomic_flag& busy) noexcept : busy_(busy) {
    while (busy_.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~Busy() { busy_.clear(std::memory_order_release); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

private:
  std::atomic_flag& busy_;
};

void PeerTable::write(size_t slot, const PeerEntry& entry) noexcept {
  Words words;
  std::memcpy(words.data(), &entry, sizeof entry);
  const Busy hold(busy_);
  write_words((*slots_.load(std::memory_order_relaxed))[slot], words);
}

void PeerTable::move_to(PeerSlots& page) noexcept {
  const Busy hold(busy_);
  const PeerSlots& from = *slots_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < from.size(); ++i)
    if (Words words; read_words(from[i], words))
      write_words(page[i], words);
  slots_.store(&page, std::memory_order_release);
}

void PeerTable::in_child() noexcept {
  busy_.clear();
  std::memset(static_cast<void*>(&own_), 0, sizeof own_);
  slots_.store(&own_, std::memory_order_release);
}

} // namespace adverb::observe
