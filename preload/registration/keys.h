// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Virtual keys: the lkey/rkey values the program holds for regions that are not pinned.
//
// A virtual key must never equal a live key of the device, and a peer that uses it without adverb
// must earn a real NAK. So it is reserved from the provider: an unbound memory window (costs no
// memory), or where the device has none, a one-page MR without rights. Keys are handed out oldest
// first, so that a key just given back is not soon met again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::registration {

class KeyPool;

// A key in use; goes back to its pool when the last holder drops it. A region holds it, and so does
// every grant made under it: the key is not reused while a peer may still act on the old meaning.
class Key {
public:
  Key(KeyPool& pool, uint32_t value) : pool_(pool), value_(value) {}
  ~Key();
  Key(const Key&) = delete;
  Key& operator=(const Key&) = delete;
  uint32_t value() const noexcept { return value_; }

private:
  KeyPool& pool_;
  uint32_t value_;
};

// One per program context. Thread-safe.
class KeyPool {
public:
  explicit KeyPool(ibv_context* context) : context_(context) {}
  KeyPool(const KeyPool&) = delete;
  KeyPool& operator=(const KeyPool&) = delete;

  // A reserved key, or nullptr with errno set when the device gives no more.
  std::shared_ptr<Key> take();

  // True for a key this pool reserved, in use by a region or not.
  bool owns(uint32_t key) const;

  // A peer was told that `key` is a real key; it may cache that, so the key must not become a
  // virtual one in this process's lifetime.
  void told_real(uint32_t key);

  // In a fork child, where another thread of the parent may have held the lock.
  void in_child() { new (&lock_) std::mutex; }

  // Gives everything back to the provider; before the program's context closes. No key may be out.
  void close();

private:
  friend class Key;
  void give_back(uint32_t key);
  std::optional<uint32_t> reserve();

  struct Reserved {
    ibv_mw* window = nullptr;
    ibv_mr* region = nullptr;
    void* page = nullptr;
  };

  ibv_context* context_;
  mutable std::mutex lock_;
  ibv_pd* pd_ = nullptr; // adverb's own, so that the program's PDs can go when it wants
  bool no_windows_ = false;
  std::vector<Reserved> reserved_;
  std::deque<uint32_t> free_;
  std::unordered_set<uint32_t> owned_;
  std::unordered_set<uint32_t> told_real_;
};

} // namespace adverb::registration
