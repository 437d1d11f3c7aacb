// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A channel that adverb carries by a queue pair of its own, on the path of the program's queue
// pairs and shared by all of them on that path. What carries it is reliable (rc_companion.h), or
// packets that adverb itself repairs (packet_companion.h).
#pragma once

#include "link/channel.h"
#include "link/device.h"
#include "link/local_qp.h"
#include "link/wire.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace adverb {
class World;
}

namespace adverb::link {

class Companion : public Channel {
public:
  // What the peer's end said of itself over the control connection.
  struct Remote {
    uint32_t qpn;
    uint32_t psn;
    uint32_t credits;
    size_t message_max;
    uint8_t version;
    uint32_t timeout;
    std::optional<wire::PacketAddress> packets = std::nullopt; // of one that packets carry
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
  virtual uint32_t qpn() const noexcept = 0;
  virtual uint32_t psn() const noexcept = 0;
  // Where packets reach it; nullopt: none carry it.
  virtual std::optional<wire::PacketAddress> packet_address() const = 0;
  // Whether the peer's first message has come and was the nonce: both ends are on the path that the
  // companion was connected by. Any thread.
  bool is_open() const noexcept { return proven_; }
  // Let go of when the companion and all that it took of the device are gone, on the service
  // thread. Set once, by who made it.
  void keep(std::shared_ptr<void> charge) noexcept { charge_ = std::move(charge); }

  void close() noexcept override;

protected:
  static constexpr uint32_t beside = 1; // messages outside the credits

  Companion(World& world, std::shared_ptr<Device> device, Role role,
            std::shared_ptr<Protocol> protocol);

  // Makes the queue pair reach the peer's. `remote` holds what both ends agree on. errno value.
  virtual int attach(const LocalQp& qp, const Remote& remote) = 0;
  // Nothing the peer still sends lands any more, and everything outstanding comes to its end. Under
  // the progress lock; may come twice.
  virtual void stop() noexcept = 0;
  // A message of the peer's, under the progress lock.
  void received(RxBuffer message);

  World& world_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Protocol> protocol_;

private:
  void finish(); // under the progress lock

  std::shared_ptr<void> charge_;

  bool finished_ = false;      // this and what follows: progress lock
  Atomic<bool> proven_{false}; // changed under the progress lock
  std::vector<std::byte> nonce_;
  std::function<void(bool)> on_proof_;
};

} // namespace adverb::link
