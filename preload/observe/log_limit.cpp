// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which lines were said before: a fixed open-addressed table of key hashes, no lock, no allocation.
#include "observe/counters.h"
#include "observe/layout.h"
#include "observe/lifecycle.h"
#include "observe/log.h"

#include <ctime>

namespace adverb::observe {

namespace {

constexpr size_t kKeys = 512;

struct Said {
  std::atomic<uint64_t> key;     // hash, 0 while free
  std::atomic<uint64_t> next_ns; // CLOCK_MONOTONIC before which log_every() holds back
};

constinit Said g_said[kKeys] = {};

/// The key's entry, `fresh` when this call made it; null when the table is full. Two keys of equal
/// 64-bit hash would share an entry: the price is one line less.
Said* find(std::string_view key, bool& fresh) noexcept {
  uint64_t hash = fnv1a(key);
  if (hash == 0)
    hash = 1;
  for (size_t probe = 0; probe < kKeys; ++probe) {
    Said& entry = g_said[(hash + probe) % kKeys];
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

} // namespace

namespace detail {
void log_forget() noexcept {
  for (Said& entry : g_said) {
    entry.key.store(0, std::memory_order_relaxed);
    entry.next_ns.store(0, std::memory_order_relaxed);
  }
}
} // namespace detail

bool log_once(std::string_view key) noexcept {
  bool fresh = false;
  if (find(key, fresh) == nullptr)
    count(Counter::log_dropped);
  return fresh;
}

bool log_every(std::string_view key, unsigned seconds) noexcept {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const uint64_t now =
      static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
  bool fresh = false;
  Said* entry = find(key, fresh);
  if (entry != nullptr) {
    uint64_t due = entry->next_ns.load(std::memory_order_relaxed);
    if (now >= due && entry->next_ns.compare_exchange_strong(
                          due, now + uint64_t{seconds} * 1'000'000'000, std::memory_order_relaxed))
      return true;
  }
  count(Counter::log_dropped);
  return false;
}

} // namespace adverb::observe
