// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which lines were said before: no lock, no allocation.
#include "observe/layout.h"
#include "observe/log.h"

namespace adverb::observe {

/// The key's entry, `fresh` when this call made it; null when the table is full. Two keys of equal
/// 64-bit hash would share an entry: the price is one line less.
Log::Said* Log::find(std::string_view key, bool& fresh) noexcept {
  uint64_t hash = fnv1a(key);
  if (hash == 0)
    hash = 1;
  for (size_t probe = 0; probe < keys; ++probe) {
    Said& entry = said_[(hash + probe) % keys];
    uint64_t held = 0;
    if (entry.key.compare_exchange_strong(held, hash, std::memory_order_acq_rel)) {
      fresh = true;
      return &entry;
    }
    if (held == hash) {
      fresh = false;
      return &entry;
    }
  }
  return nullptr;
}

bool Log::once(std::string_view key) noexcept {
  bool fresh = false;
  if (find(key, fresh) == nullptr)
    counters_.count(Counter::log_dropped);
  return fresh;
}

bool Log::every(std::string_view key, unsigned seconds) noexcept {
  const auto now = static_cast<uint64_t>(clock_.now().count());
  bool fresh = false;
  Said* entry = find(key, fresh);
  if (entry != nullptr) {
    uint64_t due = entry->next_ns.load(std::memory_order_relaxed);
    if (now >= due && entry->next_ns.compare_exchange_strong(
                          due, now + uint64_t{seconds} * 1'000'000'000, std::memory_order_relaxed))
      return true;
  }
  counters_.count(Counter::log_dropped);
  return false;
}

} // namespace adverb::observe
