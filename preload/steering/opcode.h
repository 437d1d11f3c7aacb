// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a work request's opcode says about it.
#pragma once

#include <cstdint>

#include <infiniband/verbs.h>

namespace adverb::steering {

constexpr bool is_atomic(ibv_wr_opcode opcode) noexcept {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

// Data of the peer comes to local memory.
constexpr bool reads_remote(ibv_wr_opcode opcode) noexcept {
  return opcode == IBV_WR_RDMA_READ || is_atomic(opcode);
}

// Names memory of the peer by a key.
constexpr bool is_one_sided(ibv_wr_opcode opcode) noexcept {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
         reads_remote(opcode);
}

// A connected queue pair takes it, whatever the provider: no other would have a chance.
constexpr bool goes_on_connected(ibv_wr_opcode opcode) noexcept {
  switch (opcode) {
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
  case IBV_WR_SEND:
  case IBV_WR_SEND_WITH_IMM:
  case IBV_WR_SEND_WITH_INV:
  case IBV_WR_RDMA_READ:
  case IBV_WR_ATOMIC_CMP_AND_SWP:
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
  case IBV_WR_LOCAL_INV:
  case IBV_WR_BIND_MW:
    return true;
  default:
    return false;
  }
}

// Takes a receive at the peer.
constexpr bool consumes_receive(ibv_wr_opcode opcode) noexcept {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
         opcode == IBV_WR_SEND_WITH_INV || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

inline uint32_t remote_key(const ibv_send_wr& wr) noexcept {
  return is_atomic(wr.opcode) ? wr.wr.atomic.rkey : wr.wr.rdma.rkey;
}

inline uint64_t remote_address(const ibv_send_wr& wr) noexcept {
  return is_atomic(wr.opcode) ? wr.wr.atomic.remote_addr : wr.wr.rdma.remote_addr;
}

// What a successful completion of the request is called.
constexpr ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) noexcept {
  switch (opcode) {
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    return IBV_WC_RDMA_WRITE;
  case IBV_WR_RDMA_READ:
    return IBV_WC_RDMA_READ;
  case IBV_WR_ATOMIC_CMP_AND_SWP:
    return IBV_WC_COMP_SWAP;
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    return IBV_WC_FETCH_ADD;
  case IBV_WR_BIND_MW:
    return IBV_WC_BIND_MW;
  case IBV_WR_LOCAL_INV:
    return IBV_WC_LOCAL_INV;
  case IBV_WR_TSO:
    return IBV_WC_TSO;
  default:
    return IBV_WC_SEND;
  }
}

} // namespace adverb::steering
