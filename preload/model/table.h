// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// From the provider's object to ours. Few writers (create, destroy), many readers.
#pragma once

#include "world/sync.h"

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

namespace adverb::model {

// Sharded so that threads with queue pairs of their own do not meet on one lock. A raw pointer from
// find() stays good as long as the program does not destroy the object while it uses it, which the
// verbs forbid anyway; who keeps one for later takes the shared pointer.
template <typename T> class Table {
public:
  void insert(const void* key, std::shared_ptr<T> value) {
    Shard& s = shard(key);
    const std::unique_lock hold(s.lock);
    s.map[key] = std::move(value);
  }

  std::shared_ptr<T> erase(const void* key) {
    Shard& s = shard(key);
    const std::unique_lock hold(s.lock);
    const auto it = s.map.find(key);
    if (it == s.map.end())
      return nullptr;
    auto value = std::move(it->second);
    s.map.erase(it);
    return value;
  }

  T* find(const void* key) const {
    const Shard& s = shard(key);
    const std::shared_lock hold(s.lock);
    const auto it = s.map.find(key);
    return it == s.map.end() ? nullptr : it->second.get();
  }

  std::shared_ptr<T> share(const void* key) const {
    const Shard& s = shard(key);
    const std::shared_lock hold(s.lock);
    const auto it = s.map.find(key);
    return it == s.map.end() ? nullptr : it->second;
  }

  std::vector<std::shared_ptr<T>> all() const {
    std::vector<std::shared_ptr<T>> out;
    for (const Shard& s : shards_) {
      const std::shared_lock hold(s.lock);
      for (const auto& [key, value] : s.map)
        out.push_back(value);
    }
    return out;
  }

  // For a fork child, where another thread may have held the locks: makes them anew; what the table
  // holds stays (a half-made entry of that other thread would have been its object, lost anyway).
  void relock() {
    for (Shard& s : shards_)
      renew(s.lock);
  }
  bool empty() const {
    for (const Shard& s : shards_)
      if (!s.map.empty())
        return false;
    return true;
  }
  // The same, and forgets everything without destroying it.
  void abandon() {
    for (Shard& s : shards_) {
      renew(s.lock);
      new (&s.map) std::unordered_map<const void*, std::shared_ptr<T>>;
    }
  }

private:
  struct alignas(64) Shard {
    mutable SharedMutex lock;
    std::unordered_map<const void*, std::shared_ptr<T>> map;
  };
  Shard& shard(const void* key) { return shards_[index(key)]; }
  const Shard& shard(const void* key) const { return shards_[index(key)]; }
  static size_t index(const void* key) {
    return reinterpret_cast<uintptr_t>(key) * 0x9E3779B97F4A7C15ULL >> 60;
  }
  std::array<Shard, 16> shards_;
};

} // namespace adverb::model
