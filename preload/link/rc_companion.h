// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A companion whose queue pair is an RC one: the device carries each message whole and in order.
#pragma once

#include "link/companion.h"
#include "world/sync.h"

#include <memory>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::link {

class ReceivePool;

class RcCompanion final : public Companion, public DeviceQp {
public:
  static std::shared_ptr<RcCompanion> make(World& world, std::shared_ptr<Device> device, Role role,
                                           std::shared_ptr<Protocol> protocol, uint32_t credits);

  uint32_t qpn() const noexcept override { return qp_->qp_num; }
  uint32_t psn() const noexcept override { return psn_; }
  std::optional<wire::PacketAddress> packet_address() const override { return std::nullopt; }
  bool repairs() const noexcept override { return false; }

  std::byte* acquire() noexcept override;
  void send(std::byte* message, size_t bytes) noexcept override;
  void abandon(std::byte* message) noexcept override;

private:
  RcCompanion(World& world, std::shared_ptr<Device> device, Role role,
              std::shared_ptr<Protocol> protocol);
  ~RcCompanion() override;
  static void retire(RcCompanion* companion);
  int set_up(uint32_t credits); // errno value
  int attach(const LocalQp& qp, const Remote& remote) override;
  void stop() noexcept override;
  uint32_t index_of(const std::byte* message) const noexcept;
  void on_received(RxBuffer message) override { received(std::move(message)); }
  void on_sent(uint64_t index, bool ok) override;

  ReceivePool* receives_ = nullptr;
  ibv_qp* qp_ = nullptr;
  ibv_mr* mr_ = nullptr;
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
  size_t stride_ = 0; // from buffer to buffer, of which the peer may understand less
  uint32_t psn_ = 0;
  uint32_t slots_posted_ = 0;
  Mutex lock_; // leaf
  std::vector<uint32_t> free_;
  // Slots of what was sent and has not been reported, in order; every so-many-th reports.
  std::unique_ptr<uint32_t[]> sent_;
  uint32_t slots_ = 0;
  uint32_t report_every_ = 1;
  uint64_t sent_begin_ = 0;
  uint64_t sent_end_ = 0;
  bool starved_ = false;
};

} // namespace adverb::link
