// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb's own context of a device: what its links need there, apart from the program's objects.
// One PD, one CQ with a completion channel that the service thread watches, and a pool of receive
// buffers for each length of messages.
#pragma once

#include "link/channel.h"
#include "link/receive_pool.h"
#include "link/spin.h"
#include "service/service.h"
#include "world/sync.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb {
class World;
}

namespace adverb::link {

// A queue pair of adverb's own on a device. Both calls are under the progress lock.
class DeviceQp {
public:
  virtual void on_sent(uint64_t wr_id, bool ok) = 0;
  virtual void on_received(RxBuffer message) = 0;

protected:
  ~DeviceQp() = default;
};

class Device final : public Progress, private service::Poller {
public:
  // nullptr, errno and a log line when the device cannot be opened again.
  static std::shared_ptr<Device> open(World& world, ibv_device* device);

  bool progress() override;
  void rest() override;

  // Whether a port of the device has this address now.
  bool has_gid(const ibv_gid& gid) const;

  // Bytes this process may pin for messages on this device, both ways.
  uint64_t budget() const noexcept { return budget_; }
  uint64_t left() const noexcept {
    const uint64_t used = used_.load(std::memory_order_relaxed);
    return used < budget_ ? budget_ - used : 0;
  }
  // How many credits a new channel with messages of that size may have; at least 2.
  uint32_t credits_to_give(const Protocol::Size& size) const noexcept;

  // For who makes a queue pair here.
  ibv_context* context() const noexcept { return context_; }
  ibv_pd* pd() const noexcept { return pd_; }
  ibv_cq* cq() const noexcept { return cq_; }
  // Of messages of one length; nullptr and errno when there can be none.
  ReceivePool* receive_pool(size_t message_bytes);
  // Bytes of the budget, taken and given back.
  void pinned(uint64_t bytes) noexcept;
  void unpinned(uint64_t bytes) noexcept;
  // Completions of `qpn` go to `qp`, until remove(), which does not wait for those under way.
  void add(uint32_t qpn, std::weak_ptr<DeviceQp> qp);
  void remove(uint32_t qpn);
  // Takes some of what is in the CQ; true if there was anything. Under the progress lock.
  bool poll();

private:
  Device(World& world, ibv_device* device);
  int open();
  void on_event(); // service thread, as the three that follow
  bool look(bool after_job) override;
  bool arm();
  void watch_polls();
  bool take();
  std::shared_ptr<DeviceQp> find(uint32_t qpn);

  World& world_;
  ibv_device* device_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* events_ = nullptr;
  ibv_cq* cq_ = nullptr;
  uint64_t budget_ = 0;
  Atomic<uint64_t> used_{0}; // of it
  Spin spin_;
  std::chrono::nanoseconds last_message_{0}; // that the service thread has found; its own
  bool watching_polls_ = false;              // a timer does; the same
  std::chrono::nanoseconds left_at_{0};      // to the polls; the same
  Atomic<uint32_t> found_by_polls_{0};       // how often the program's polls have found something
  bool looking_ = false;                     // the service thread's own, as what follows
  std::chrono::nanoseconds looking_since_{0};
  std::chrono::nanoseconds last_job_{0};
  uint32_t looks_before_ = 0;
  uint32_t found_by_polls_before_ = 0;
  uint32_t found_by_polls_alone_ = 0; // since it has found something itself, looking or not
  // The CQ is not armed, because the program polls; who makes it false sees to that.
  Atomic<bool> left_to_polls_{false};

  Mutex pools_lock_; // who makes one; leaf
  std::vector<std::unique_ptr<ReceivePool>> pools_;
  static constexpr size_t pools_max = 8; // lengths of messages
  std::array<Atomic<ReceivePool*>, pools_max> pool_at_{};
  Mutex qps_lock_; // leaf
  std::unordered_map<uint32_t, std::weak_ptr<DeviceQp>> qps_;
};

// The devices that links of this process use, each opened at first use.
class Devices {
public:
  explicit Devices(World& world) : world_(world) {}
  std::shared_ptr<Device> get(ibv_device* device); // nullptr and errno: cannot be opened

private:
  World& world_;
  Mutex lock_;
  std::map<std::string, std::shared_ptr<Device>> all_;
};

} // namespace adverb::link
