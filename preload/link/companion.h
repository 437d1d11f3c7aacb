// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A channel over a companion queue pair: adverb's own, on the path of the program's queue pairs and
// shared by all of them on that path.
#pragma once

#include "link/channel.h"
#include "link/device.h"
#include "link/local_qp.h"
#include "world/sync.h"

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb {
class World;
}

namespace adverb::link {

class Companion final : public Channel, public DeviceQp {
public:
  // Creates the queue pair and its buffers; nullptr and errno when the device cannot. `credits` at
  // most.
  static std::shared_ptr<Companion> create(World& world, std::shared_ptr<Device> device, Role role,
                                           std::shared_ptr<Protocol> protocol, uint32_t credits);

  // What the peer's end said of itself over the control connection.
  struct Remote {
    uint32_t qpn;
    uint32_t psn;
    uint32_t credits;
    size_t message_max;
    uint8_t version;
    uint32_t timeout;
  };
  // What both ends take, so long that a queue pair with less notices a loss before its companion
  // does. 14 (67 ms) and the most retries where that has none: it is never sent again.
  static uint32_t timeout_for(const LocalQp& qp) noexcept;
  // Connects by the path of `qp`, a queue pair of the program's, in its partition. The first
  // message each way proves that both ends of the control connection are the ends of the queue pair
  // too: the peer's must be `nonce`, and `proven` is called once, under the progress lock on any
  // thread, when it has come or the link is over; never after an error. Not with the progress lock
  // held. errno value.
  int connect(const LocalQp& qp, const Remote& remote, std::vector<std::byte> nonce,
              std::function<void(bool)> proven);
  void send_proof(std::span<const std::byte> nonce);
  uint32_t qpn() const noexcept { return qp_->qp_num; }
  uint32_t psn() const noexcept { return psn_; }
  // Whether the peer's first message has come and was the nonce: both ends are on the path that the
  // companion was connected by. Any thread.
  bool is_open() const noexcept { return proven_; }

  std::byte* acquire() noexcept override;
  void send(std::byte* message, size_t bytes) noexcept override;
  void abandon(std::byte* message) noexcept override;
  void close() noexcept override;

private:
  Companion(World& world, std::shared_ptr<Device> device, Role role,
            std::shared_ptr<Protocol> protocol);
  ~Companion() override;
  static void retire(Companion* companion);
  int set_up(uint32_t credits); // errno value
  void stop() noexcept;
  uint32_t index_of(const std::byte* message) const noexcept;
  void on_received(RxBuffer message) override;
  void on_sent(uint64_t index, bool ok) override;
  void finish(); // under the progress lock

  World& world_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Protocol> protocol_;
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
  bool finished_ = false;      // this and what follows: progress lock
  Atomic<bool> proven_{false}; // changed under the progress lock
  std::vector<std::byte> nonce_;
  std::function<void(bool)> on_proof_;
};

} // namespace adverb::link
