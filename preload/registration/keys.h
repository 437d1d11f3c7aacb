// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Virtual keys: the lkey/rkey values the program holds for regions that are not pinned.
//
// A virtual key must never equal a live key of the device, and a peer that uses it without adverb
// must earn a real NAK. So it is reserved from the provider: an unbound memory window (costs no
// memory), or where the device has none, a one-page MR without rights. Keys are handed out oldest
// first, so that a key just given back is not soon met again.
#pragma once

#include "world/sync.h"

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb {
class World;
}

namespace adverb::registration {

// Keys nobody uses, oldest first. A key takes its place in the list along while it is used, so that
// it comes back without asking for memory.
struct FreeKeys {
  Mutex lock;
  std::list<uint32_t> keys;
};

// A key in use; goes back to its pool, if that is still there, when the last holder drops it. A
// region holds it, and so does every grant made under it and whoever told a peer of it: the key is
// not reused while a peer may still act on the old meaning.
class Key {
public:
  // Of no value yet: take() gives it one.
  explicit Key(std::shared_ptr<FreeKeys> home) : home_(std::move(home)) {}
  ~Key();
  Key(const Key&) = delete;
  Key& operator=(const Key&) = delete;
  // `place`: one of a list, with the value.
  void take(std::list<uint32_t>& place) noexcept { place_.splice(place_.end(), place); }
  uint32_t value() const noexcept { return place_.front(); }

private:
  std::shared_ptr<FreeKeys> home_;
  std::list<uint32_t> place_; // one, or none yet
};

// One per program context. Thread-safe.
class KeyPool {
public:
  KeyPool(World& world, ibv_context* context) : world_(world), context_(context) {}
  KeyPool(const KeyPool&) = delete;
  KeyPool& operator=(const KeyPool&) = delete;

  // A reserved key. errno, when the device gives no more.
  [[nodiscard]] int take(std::shared_ptr<Key>& key);

  // True for a key this pool reserved, in use by a region or not.
  bool owns(uint32_t key) const;

  // A peer was told that `key` is a real key; it may cache that, so the key must not become a
  // virtual one in this process's lifetime.
  void told_real(uint32_t key);

  // In a fork child, where another thread of the parent may have held a lock.
  void in_child();

  // Gives everything back to the provider; before the program's context closes. No region may have
  // a key of it; what else holds one may go on.
  void close();

private:
  using Held = std::lock_guard<Mutex>; // of lock_: shown to what may only be called under it

  bool reuse(std::list<uint32_t>& place, const Held& held);
  int reserve(uint32_t& key, const Held& held);

  struct Reserved {
    ibv_mw* window = nullptr;
    ibv_mr* region = nullptr;
    void* page = nullptr;
  };

  World& world_;
  ibv_context* context_;
  mutable Mutex lock_;
  ibv_pd* pd_ = nullptr; // adverb's own, so that the program's PDs can go when it wants
  bool no_windows_ = false;
  std::vector<Reserved> reserved_;
  std::shared_ptr<FreeKeys> free_ = std::make_shared<FreeKeys>();
  std::unordered_set<uint32_t> owned_;
  std::unordered_set<uint32_t> told_real_;
};

} // namespace adverb::registration
