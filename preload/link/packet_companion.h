// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A companion for a far and lossy path: each message of the channel is a message of an endpoint
// (endpoint/endpoint.h), which goes as packets over UC or UD, and of which adverb itself makes good
// what the network loses.
//
// The endpoint's thread moves packets. The service thread takes the messages, which may come to
// their end in any order, and hands them on in the order in which they were sent. Buffers of
// messages are not registered; those of packets are, and are charged to the device's budget.
#pragma once

#include "endpoint/endpoint.h"
#include "link/companion.h"
#include "link/path_judge.h"
#include "world/sync.h"

#include <deque>
#include <memory>
#include <vector>

namespace adverb::link {

class PacketCompanion final : public Companion {
public:
  // `path`: a queue pair of the program's on it. nullptr and errno; ENOTSUP: the device has neither
  // UC nor UD queue pairs for it, ENOMEM: the budget has no room.
  static std::shared_ptr<PacketCompanion> make(World& world, std::shared_ptr<Device> device,
                                               Role role, std::shared_ptr<Protocol> protocol,
                                               uint32_t credits, const LocalQp& path);

  uint32_t qpn() const noexcept override { return qpn_; }
  uint32_t psn() const noexcept override { return 0; } // stands in the address of packets
  std::optional<wire::PacketAddress> packet_address() const override { return address_; }

  std::byte* acquire() noexcept override;
  void send(std::byte* message, size_t bytes) noexcept override;
  void abandon(std::byte* message) noexcept override;
  void judge_path() noexcept override;
  bool pays() const noexcept override { return pays_; }

private:
  class Receives;

  PacketCompanion(World& world, std::shared_ptr<Device> device, Role role,
                  std::shared_ptr<Protocol> protocol);
  ~PacketCompanion() override;
  static void retire(PacketCompanion* companion);
  int set_up(uint32_t credits, const LocalQp& path); // errno value
  int attach(const LocalQp& qp, const Remote& remote) override;
  void stop() noexcept override;
  void watch(); // service thread, as the four that follow
  void unwatch() noexcept;
  void take_events();
  void sent(const adverb_event& event);
  void sound();

  std::shared_ptr<endpoint::Endpoint> endpoint_;
  // Of the endpoint, and known after it has been closed: the peer may ask at any time.
  wire::PacketAddress address_{};
  uint32_t qpn_ = 0;
  uint64_t pinned_ = 0;        // bytes of the budget
  bool watched_ = false;       // service thread
  Atomic<bool> judged_{false}; // the path is
  Atomic<bool> pays_{false};
  PathJudge judge_;         // service thread
  uint64_t posts_seen_ = 0; // service thread
  size_t stride_ = 0;
  std::shared_ptr<Receives> receives_;
  Mutex lock_;                          // before the endpoint's
  std::unique_ptr<std::byte[]> memory_; // resident once it is used
  std::vector<uint32_t> free_;
  bool starved_ = false;
};

} // namespace adverb::link
