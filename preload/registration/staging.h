// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Staging: small pre-registered blocks that stand in for the program's unpinned buffers.
//
// A slab is 64 KiB registered in one protection domain and cut into blocks of one size. What is
// longer has to stand there seldom, and has a slab of its own then. Slabs come when needed and go
// when empty and the process's staging budget is wanted elsewhere, so that a program with many
// protection domains and a small RLIMIT_MEMLOCK still works.
#pragma once

#include "registration/budget.h"
#include "world/sync.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::registration {

struct Slab;

struct Block {
  std::byte* data = nullptr;
  uint32_t lkey = 0;
  Slab* slab = nullptr;
  explicit operator bool() const noexcept { return data != nullptr; }
};

// One per protection domain. Thread-safe.
class Staging final : public Holder {
public:
  static constexpr size_t slab_bytes = 64 * 1024;
  static constexpr size_t block_max = slab_bytes; // of what shares a slab

  Staging(World& world, ibv_pd* pd);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // A block of at least `bytes`, or an empty one when the budget is used up.
  Block take(size_t bytes);
  // For whoever does not give it back soon: only while half of the budget is free.
  Block take_to_keep(size_t bytes) noexcept;
  void give(Block block) noexcept;

  // Before the protection domain goes: gives all slabs without used blocks back, and takes none
  // until reopen().
  void close() noexcept;
  void reopen() noexcept;

  bool try_give_back() noexcept override;
  bool holds_slabs() const noexcept override { return true; }

private:
  using Held = std::lock_guard<QuickMutex>; // of lock_: shown to what may only be called under it

  // Posted receives keep theirs: with blocks much larger than they need it would be more that is
  // pinned than their own memory.
  static constexpr std::array<size_t, 9> sizes = {256,  512,   1024,  2048, 4096,
                                                  8192, 16384, 32768, 65536};

  using Slabs = std::vector<std::unique_ptr<Slab>>; // of one size, or of those above

  Slab* new_slab(Slabs& among, size_t bytes, size_t block_bytes, const Held& held);
  bool make_room(size_t bytes, const Held& held);
  bool drop_an_empty_slab(const Held& held) noexcept;

  World& world_;
  Budgets& budgets_;
  ibv_pd* pd_;
  QuickMutex lock_;
  bool closed_ = false;
  std::array<Slabs, sizes.size() + 1> slabs_; // the last ones have a block each
};

} // namespace adverb::registration
