// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A companion queue pair: carries messages between two processes over the path of the program's own
// queue pairs, shared by all of them on that path. One direction of a link: the client sends
// requests, the server replies.
#pragma once

#include "link/device.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace adverb::link {

class Channel;

// One received message; its buffer goes back to the device's receive queue with it.
class RxBuffer {
public:
  RxBuffer(Device* device, uint32_t slot, std::span<const std::byte> bytes)
      : device_(device), slot_(slot), bytes_(bytes) {}
  RxBuffer(RxBuffer&& other) noexcept
      : device_(other.device_), slot_(other.slot_), bytes_(other.bytes_) {
    other.device_ = nullptr;
  }
  RxBuffer& operator=(RxBuffer&&) = delete;
  ~RxBuffer() { release(); }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  void release() noexcept;

private:
  Device* device_;
  uint32_t slot_;
  std::span<const std::byte> bytes_;
};

// Who handles messages; every call is under the device's progress lock.
struct ChannelUser {
  virtual void on_message(Channel& channel, RxBuffer message) = 0;
  virtual void on_tx_free(Channel& channel) = 0; // after acquire() found none
  virtual void on_down(Channel& channel) = 0;    // exactly once
protected:
  ~ChannelUser() = default;
};

// Once per process, before the first link.
void set_channel_user(ChannelUser* client, ChannelUser* server);

class Channel : public std::enable_shared_from_this<Channel> {
public:
  enum class Role : uint8_t { client, server };

  // Creates the queue pair and its buffers; nullptr and errno when the device cannot.
  static std::shared_ptr<Channel> create(std::shared_ptr<Device> device, Role role,
                                         uint32_t credits);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // What the peer's end said of itself over the control connection.
  struct Remote {
    uint32_t qpn;
    uint32_t psn;
    uint32_t credits;
    size_t message_max;
  };
  // Connects: the path is the program's own. The first message each way proves that both ends of
  // the control connection are the ends of the queue pair too: the peer's must be `nonce`, and
  // `proven` is called once, under the progress lock on any thread, when it has come or the link is
  // over; never after an error. Not with the progress lock held. errno value.
  int connect(const ibv_ah_attr& ah, ibv_mtu mtu, const Remote& remote,
              std::vector<std::byte> nonce, std::function<void(bool)> proven);
  uint32_t qpn() const noexcept { return qp_->qp_num; }
  uint32_t psn() const noexcept { return psn_; }

  void send_proof(std::span<const std::byte> nonce);

  Device& device() const noexcept { return *device_; }
  Role role() const noexcept { return role_; }
  uint32_t credits() const noexcept { return credits_; }
  size_t message_max() const noexcept { return message_max_; }
  bool down() const noexcept { return down_.load(std::memory_order_acquire); }

  // Registered memory for one message of message_max() bytes, or nullptr. Thread-safe, leaf lock.
  std::byte* acquire() noexcept;
  void send(std::byte* message, size_t bytes) noexcept;
  void abandon(std::byte* message) noexcept;

  // The link is over, seen here or told by the control connection. Any thread, any lock held.
  void close() noexcept;

  std::shared_ptr<void> user_data; // progress lock

private:
  friend class Device;
  Channel(std::shared_ptr<Device> device, Role role);
  ~Channel();
  static void retire(Channel* channel);
  void stop() noexcept;
  void on_received(RxBuffer message);
  void on_sent(uint64_t index, bool ok);
  void finish(); // progress lock

  std::shared_ptr<Device> device_;
  const Role role_;
  ibv_qp* qp_ = nullptr;
  ibv_mr* mr_ = nullptr;
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
  uint32_t psn_ = 0;
  uint32_t credits_ = 0;
  uint32_t slots_posted_ = 0;
  size_t message_max_ = 0;
  std::mutex lock_;
  std::vector<uint32_t> free_;
  bool starved_ = false;
  std::atomic<bool> down_{false};
  bool finished_ = false; // this and what follows: progress lock
  bool proven_ = false;
  std::vector<std::byte> nonce_;
  std::function<void(bool)> on_proof_;
};

} // namespace adverb::link
