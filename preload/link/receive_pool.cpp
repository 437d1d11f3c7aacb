// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/receive_pool.h"
#include "memory/own.h"
#include "world/world.h"

#include <algorithm>
#include <cerrno>
#include <sys/mman.h>

namespace adverb::link {

namespace {
constexpr uint32_t depth_wanted = 4096;
}

std::unique_ptr<ReceivePool> ReceivePool::make(World& world, ibv_context* context, ibv_pd* pd,
                                               size_t message_bytes, uint64_t wr_id,
                                               Atomic<uint64_t>& used) {
  std::unique_ptr<ReceivePool> pool(
      new ReceivePool(world, context, pd, message_bytes, wr_id, used));
  ibv_srq_init_attr attr{};
  attr.attr.max_wr = depth_wanted;
  attr.attr.max_sge = 1;
  const provider::Inside inside;
  pool->srq_ = world.provider.real().ibv_create_srq(pd, &attr);
  if (pool->srq_ == nullptr)
    return nullptr;
  pool->depth_ = attr.attr.max_wr;
  return pool;
}

ReceivePool::Slot ReceivePool::at(uint32_t slot) noexcept {
  const std::lock_guard hold(lock_);
  return slots_[slot];
}

RxBuffer ReceivePool::received(uint32_t slot, size_t bytes) noexcept {
  return {*this, slot, {at(slot).memory, bytes}};
}

void ReceivePool::take_back(uint32_t slot) noexcept {
  const provider::Inside inside;
  const Slot buffer = at(slot);
  ibv_sge sge{reinterpret_cast<uintptr_t>(buffer.memory), static_cast<uint32_t>(message_bytes_),
              buffer.region->lkey};
  ibv_recv_wr wr{};
  wr.wr_id = wr_id_ | slot;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  if (context_->ops.post_srq_recv(srq_, &wr, &bad) != 0 && world_.log.every("srq-post", 10))
    world_.log.error("{}: a receive buffer of the links is lost; fewer credits remain",
                     context_->device->name);
}

int ReceivePool::add(uint32_t count) {
  std::vector<uint32_t> fresh;
  {
    const std::lock_guard hold(lock_);
    const uint32_t reused = std::min(count, spare_);
    spare_ -= reused;
    count -= reused;
    if (count == 0)
      return 0;
    if (slots_.size() + count > depth_)
      return ENOMEM;
    const size_t stride = buffer_stride(message_bytes_);
    const size_t bytes = count * stride;
    void* memory = memory::map_own(bytes, PROT_READ | PROT_WRITE);
    if (memory == MAP_FAILED)
      return errno;
    madvise(memory, bytes, MADV_DONTFORK);
    const provider::Inside inside;
    ibv_mr* mr = world_.provider.real().ibv_reg_mr(pd_, memory, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (mr == nullptr) {
      const int rc = provider::failure();
      munmap(memory, bytes);
      return rc;
    }
    world_.counters.gauge_add(observe::Gauge::pinned_bytes, static_cast<int64_t>(bytes));
    used_ += bytes;
    for (uint32_t i = 0; i < count; ++i) {
      fresh.push_back(static_cast<uint32_t>(slots_.size()));
      slots_.push_back({static_cast<std::byte*>(memory) + i * stride, mr});
    }
  }
  for (const uint32_t slot : fresh)
    take_back(slot);
  return 0;
}

void ReceivePool::spare(uint32_t count) noexcept {
  const std::lock_guard hold(lock_);
  spare_ += count;
}

} // namespace adverb::link
