// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A UC or UD queue pair on a program's protection domain that carries packets of at most one MTU,
// each received into a buffer of its own. The buffers are adverb's, pinned, and registered once.
#pragma once

#include "provider/ops.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb {
class World;
}

namespace adverb::endpoint {

struct QueueOptions {
  ibv_qp_type type = IBV_QPT_UD; // or IBV_QPT_UC
  uint8_t port = 1;
  int gid_index = -1;       // -1: the first that is an IPv4 address, otherwise the first
  uint32_t receives = 4096; // buffers; fewer if the device has fewer
  uint32_t sends = 256;
};

// What one queue pair is told of the other. Fixed-width and without holes: part of an address.
struct QueueAddress {
  uint8_t gid[16] = {};
  uint32_t qpn = 0;
  uint32_t psn = 0;
  uint32_t qkey = 0; // UD
  uint16_t lid = 0;
  uint8_t mtu = 0;  // an ibv_mtu
  uint8_t type = 0; // an ibv_qp_type
};
static_assert(sizeof(QueueAddress) == 32);

class PacketQueue {
public:
  // Null and errno if the device refuses: ENOTSUP if it has no such queue pairs.
  static std::unique_ptr<PacketQueue> make(World& world, ibv_pd* pd, const QueueOptions& options);
  ~PacketQueue();
  PacketQueue(const PacketQueue&) = delete;
  PacketQueue& operator=(const PacketQueue&) = delete;

  const QueueAddress& address() const noexcept { return address_; }
  // 0 or an errno value. `packet_bytes()` is valid from here on.
  int connect(const QueueAddress& peer);
  // Of a packet, header included: the smaller MTU of the two.
  uint32_t packet_bytes() const noexcept { return packet_bytes_; }
  uint32_t receives() const noexcept { return receives_; }

  // A free buffer to write a packet into, and its posting. Null: all are under way; poll() frees
  // some. Packets go out at flush(), or when some have gathered.
  std::byte* buffer() noexcept;
  void post(uint32_t bytes) noexcept; // what buffer() gave last
  void flush() noexcept;

  // Takes completions of packets that were sent and that arrived, at most a batch. Each packet that
  // has arrived is given to `take(header, payload)` and its buffer posted again. Returns how many
  // arrived; a failed queue pair is told by failed().
  template <typename Take> uint32_t poll(Take&& take) {
    const uint32_t count = collect();
    for (uint32_t i = 0; i < count; ++i)
      if (const std::span<const std::byte> packet = arrived(i); !packet.empty())
        take(packet);
    post_again(count);
    return count;
  }
  // Every buffer was in a completion at once since the last call: packets may have met none.
  bool ran_dry() noexcept;
  int failed() const noexcept { return failed_; } // an ibv_wc_status, 0: none

  // For sleeping: arm(), poll() once more, then wait for descriptor() to be readable, then woken().
  int descriptor() const noexcept { return events_->fd; }
  // `sends`: wakes for buffers that become free, too.
  int arm(bool sends) noexcept;
  void woken() noexcept;
  // Work requests fail from here on.
  void stop() noexcept;

private:
  PacketQueue(World& world, ibv_pd* pd, const QueueOptions& options);
  int set_up();
  int address_self(const ibv_port_attr& port);
  int fill_receives();
  uint32_t collect() noexcept;
  std::span<const std::byte> arrived(uint32_t i) noexcept;
  void post_again(uint32_t count) noexcept;
  std::byte* slot(uint32_t i) noexcept { return memory_ + size_t{i} * stride_; }

  static constexpr uint32_t batch = 32;

  World& world_;
  ibv_pd* pd_;
  provider::ContextOps ops_; // of the device: one look-up for all packets
  QueueOptions options_;
  ibv_comp_channel* events_ = nullptr;
  ibv_cq* sent_ = nullptr;
  ibv_cq* received_ = nullptr;
  ibv_qp* qp_ = nullptr;
  ibv_ah* ah_ = nullptr;
  ibv_mr* mr_ = nullptr;
  std::byte* memory_ = nullptr; // buffers of receives, then of sends
  size_t memory_bytes_ = 0;
  size_t stride_ = 0;
  uint32_t receives_ = 0;
  uint32_t sends_ = 0;
  uint32_t before_payload_ = 0; // UD: the GRH
  uint32_t packet_bytes_ = 0;
  QueueAddress address_;
  QueueAddress peer_;
  ibv_ah_attr path_{};
  // Sends: a ring; completions come in order.
  uint64_t posted_ = 0;
  uint64_t completed_ = 0;
  std::vector<ibv_send_wr> chain_;
  std::vector<ibv_sge> chain_sges_;
  uint32_t chained_ = 0;
  uint32_t next_send_ = 0; // of the ring: the buffer that is filled next
  uint32_t unsignaled_ = 0;
  // Receives.
  ibv_wc wcs_[batch];
  uint32_t in_a_row_ = 0; // completions taken since the CQ was last found empty
  bool dry_ = false;
  int failed_ = 0;
};

} // namespace adverb::endpoint
