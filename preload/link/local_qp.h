// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A queue pair of this process as links know it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <infiniband/verbs.h>

namespace adverb::link {

class Slots;

struct LocalQp {
  ibv_device* device = nullptr;
  uint32_t qpn = 0;
  uint64_t handle = 0;        // of this queue pair's present incarnation, never reused
  uint8_t type = 0;           // ibv_qp_type
  std::weak_ptr<Slots> slots; // of its protection domain
  // Whether a key is of memory of this process that is not pinned. Who was told that one is not is
  // right for as long as the process lives. Any thread, with no lock held; empty: all are.
  std::function<bool(uint32_t key)> is_virtual;
  // Whether it is of any memory, as far as is known; the same.
  std::function<bool(uint32_t key)> exists;
  // From RTR on:
  bool connected = false;
  uint32_t dest_qpn = 0;
  ibv_ah_attr ah{}; // the program's path: GIDs or LIDs, port
  ibv_gid sgid{};
  ibv_mtu mtu = IBV_MTU_1024;
  uint32_t rq_psn = 0;
  uint16_t pkey_index = 0;
  uint8_t timeout = 0;
  uint8_t retry_cnt = 0;
  unsigned access = 0;             // what it lets its peer do
  uint8_t responder_resources = 0; // how many READs and atomics at once

  // How long its device tries at most until it says that the peer does not answer: each timeout of
  // 4.096 us * 2^timeout may last four times that (InfiniBand Architecture Specification, volume 1,
  // 9.7.6.1.3). None: for ever.
  std::optional<std::chrono::nanoseconds> patience() const {
    if (timeout == 0)
      return std::nullopt;
    return std::chrono::nanoseconds(4096) * (uint64_t{1} << (timeout % 32)) * 4 * (retry_cnt + 1);
  }
};

} // namespace adverb::link
