// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb's own context of a device: what its links need there, apart from the program's objects.
// One PD, one CQ with a completion channel that the service thread watches, one shared receive
// queue whose buffers grow with the credits given to peers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::link {

class Channel;

// A mutex whose try_lock() lets those pass that wait: threads that poll in a loop would else keep
// it among themselves, and who waits here holds up timers and peers.
class ProgressLock {
public:
  void lock() {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    mutex_.lock();
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  bool try_lock() { return waiting_.load(std::memory_order_relaxed) == 0 && mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

private:
  std::mutex mutex_;
  std::atomic<int> waiting_{0};
};

class Device : public std::enable_shared_from_this<Device> {
public:
  // The one of this process; nullptr (and a log line) when the device cannot be opened again.
  static std::shared_ptr<Device> get(ibv_device* device);
  static void after_fork_child();

  // Held while completions are polled and handlers run. Taking it once means that nothing that ran
  // before still does.
  ProgressLock& progress_lock() noexcept { return progress_; }

  // Polls and dispatches unless another thread does; true if anything was there.
  bool progress();

  // Whether a port of the device has this address now.
  bool has_gid(const ibv_gid& gid) const;

  // Bytes of one message, by the memory this process may pin.
  size_t message_max() const noexcept { return message_max_; }
  // How many credits a new channel may have; at least 2.
  uint32_t credits_to_give() const noexcept;

private:
  friend class Channel;
  friend class RxBuffer;
  explicit Device(ibv_device* device) : device_(device) {}
  bool open();
  void on_event();
  void drain();
  bool poll();
  bool add_slots(uint32_t count);
  void return_slots(uint32_t count) noexcept;
  void post_slot(uint32_t slot) noexcept;
  void add(Channel* channel);
  void remove(const Channel* channel);

  struct Slab {
    std::byte* memory;
    ibv_mr* mr;
  };

  ibv_device* device_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* events_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_srq* srq_ = nullptr;
  size_t message_max_ = 0;
  uint64_t budget_ = 0; // bytes for buffers
  std::atomic<uint64_t> used_{0};
  uint32_t srq_depth_ = 0;

  ProgressLock progress_;
  std::mutex slots_lock_; // leaf
  struct Slot {
    std::byte* memory;
    uint32_t lkey;
  };
  std::vector<Slot> slots_;
  std::vector<Slab> slabs_;
  uint32_t spare_slots_ = 0; // posted, their channel is gone
  std::mutex channels_lock_; // leaf
  std::unordered_map<uint32_t, std::weak_ptr<Channel>> channels_;
};

} // namespace adverb::link
