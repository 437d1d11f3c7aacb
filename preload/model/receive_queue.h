// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Receives the program has posted, to a queue pair or a shared receive queue, and what stands in
// for their unpinned buffers until they complete.
//
// Not thread-safe; the owner's lock guards it.
#pragma once

#include "model/receipt.h"
#include "registration/regions.h"
#include "world/sync.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb {
class World;
}

namespace adverb::model {

class Context;

class ReceiveQueue {
public:
  // For about `most` receives, as many as the provider takes, of at most `sges` elements each.
  ReceiveQueue(Context& context, const ibv_pd* pd, registration::Staging& staging, uint32_t most,
               uint32_t sges);
  ~ReceiveQueue();

  // Before any lock is taken for prepare(): what is slow to come keeps nobody waiting but who
  // posts.
  void bring_in(const ibv_recv_wr* list) const noexcept;
  // Prepares one receive: `wr` is rewritten for the provider, with a list of elements that is good
  // until the next one. errno value; on success take_back() undoes it if the provider refuses.
  // EBUSY: it may have to come after one in staging (behind_staged.h). Unless 0, `wr` is as it was.
  int prepare(ibv_recv_wr& wr, registration::Behind behind = registration::Behind::ask);
  void take_back(const ibv_recv_wr& prepared);

  // The program's wr_id of a completion; nullopt for a receive this queue no longer knows. A
  // message that arrived consumes its receipt: bytes that are staged or came ahead are copied to
  // where the program expects them, and the length is the receipt's.
  std::optional<uint64_t> complete(ibv_wc& wc, Receipts& receipts);

  // A posted receive has this number at the provider.
  bool knows(uint64_t number) const noexcept;

  // Whether a message that stands in staging is to be copied to those bytes, by addresses of the
  // process; whether the device may bring one there by itself.
  bool awaits_copy(uintptr_t start, uint64_t bytes) const noexcept;
  bool awaits_placing(uintptr_t start, uint64_t bytes) const noexcept;
  // How many elements of posted receives stand in staging; any thread.
  uint32_t staged() const noexcept { return staged_.load(std::memory_order_relaxed); }

  // Whether SENDs may come whose bytes are copied to the receives: as the policy said when this was
  // made, and only while all of them lie in memory that the CPU can write to. Any thread.
  bool takes_ahead() const noexcept { return takes_ahead_.load(std::memory_order_relaxed); }

  Context& context() const noexcept { return context_; }
  const ibv_pd* pd() const noexcept { return pd_; }
  // PlacedReceives::number(), from the first receive that may need one on.
  uint32_t number() const noexcept { return number_; }

  // RESET or destroy: all are forgotten.
  void clear();

private:
  World& world() const noexcept;
  bool awaits(bool staged, uintptr_t start, uint64_t bytes) const noexcept;
  struct Slot {
    uint64_t wr_id = 0;
    uint32_t generation = 0;
    bool used = false;
    uint32_t sges = 0;
  };
  void grow(uint32_t more);
  void free_slot(uint32_t index);
  ibv_wc_status deliver_ahead(uint32_t index, std::span<const std::byte> bytes);
  void look_at_memory(std::span<const ibv_sge> elements) noexcept;
  bool deliver_staged(uint32_t index, uint32_t bytes);
  void tell_no_room(uint32_t bytes, registration::Behind behind) const;
  registration::Hold* holds(uint32_t index) { return &holds_[size_t{index} * sges_]; }
  const registration::Hold* holds(uint32_t index) const { return &holds_[size_t{index} * sges_]; }
  ibv_sge* elements(uint32_t index) { return &elements_[size_t{index} * sges_]; }

  Context& context_;
  const ibv_pd* pd_;
  registration::Staging& staging_;
  const uint32_t sges_;
  const uint32_t generation_; // of its slots to begin with
  uint32_t number_ = 0;
  Atomic<uint32_t> staged_{0};
  Atomic<bool> takes_ahead_;
  uint32_t looked_at_ = 0; // the last lkey that is of memory which the CPU can write to
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::vector<registration::Hold> holds_;
  std::vector<ibv_sge> elements_; // the program's
  std::vector<ibv_sge> prepared_; // of the one that is being posted
};

} // namespace adverb::model
