// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The receive buffers of a device's channels that have messages of one length: a shared receive
// queue that grows with the credits given to peers.
#pragma once

#include "link/channel.h"
#include "world/sync.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb {
class World;
}

namespace adverb::link {

// From buffer to buffer, of those for messages sent as of those for messages received: each begins
// a cache line. Where a message goes from one begun at another offset, the bytes that a CPU moves
// for the device may go some at a time (memory/native_copy.cpp).
constexpr size_t buffer_stride(size_t message_bytes) noexcept {
  return (message_bytes + 63) & ~size_t{63};
}

class ReceivePool final : public RxBuffer::Pool {
public:
  // Receives are posted with `wr_id` plus their slot's number. `used` counts the bytes of buffers.
  // nullptr and errno when the device has no such queue.
  static std::unique_ptr<ReceivePool> make(World& world, ibv_context* context, ibv_pd* pd,
                                           size_t message_bytes, uint64_t wr_id,
                                           Atomic<uint64_t>& used);
  ReceivePool(const ReceivePool&) = delete;
  ReceivePool& operator=(const ReceivePool&) = delete;

  size_t message_bytes() const noexcept { return message_bytes_; }
  ibv_srq* srq() const noexcept { return srq_; }

  // Posts `count` more buffers; errno value. spare(): as many are wanted no more, and serve the
  // next channel.
  int add(uint32_t count);
  void spare(uint32_t count) noexcept;

  // The message that arrived in a slot.
  RxBuffer received(uint32_t slot, size_t bytes) noexcept;
  void take_back(uint32_t slot) noexcept override;

private:
  ReceivePool(World& world, ibv_context* context, ibv_pd* pd, size_t message_bytes, uint64_t wr_id,
              Atomic<uint64_t>& used)
      : world_(world), context_(context), pd_(pd), message_bytes_(message_bytes), wr_id_(wr_id),
        used_(used) {}

  struct Slot {
    std::byte* memory;
    const ibv_mr* region; // of it and its neighbours
  };
  Slot at(uint32_t slot) noexcept;

  World& world_;
  ibv_context* const context_;
  ibv_pd* const pd_;
  const size_t message_bytes_;
  const uint64_t wr_id_;
  Atomic<uint64_t>& used_;
  ibv_srq* srq_ = nullptr;
  uint32_t depth_ = 0;
  Mutex lock_; // leaf
  std::vector<Slot> slots_;
  uint32_t spare_ = 0; // posted, their channel is gone
};

} // namespace adverb::link
