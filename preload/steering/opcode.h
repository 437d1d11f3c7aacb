// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a work request's opcode says about it.
#pragma once

#include <array>
#include <cstddef>
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

// The same of an opcode at one look: bits, for what is asked of every post.
enum Trait : uint32_t {
  trait_connected = 1,
  trait_one_sided = 2,
  trait_receives = 4, // consumes_receive()
  trait_read = 8,
  trait_atomic = 16,
  trait_write = 32,
  trait_brings = trait_read | trait_atomic,
};
inline constexpr auto traits = [] {
  std::array<uint8_t, 16> of{};
  for (unsigned i = 0; i < of.size(); ++i) {
    const auto opcode = static_cast<ibv_wr_opcode>(i);
    const auto set = [&](Trait trait, bool is) { of[i] |= is ? static_cast<uint8_t>(trait) : 0; };
    set(trait_connected, goes_on_connected(opcode));
    set(trait_one_sided, is_one_sided(opcode));
    set(trait_receives, consumes_receive(opcode));
    set(trait_read, opcode == IBV_WR_RDMA_READ);
    set(trait_atomic, is_atomic(opcode));
    set(trait_write, is_one_sided(opcode) && !reads_remote(opcode));
  }
  return of;
}();
constexpr uint32_t traits_of(ibv_wr_opcode opcode) noexcept {
  const auto at = static_cast<size_t>(opcode);
  return at < traits.size() ? traits[at] : 0;
}

// Whether its bytes are taken while it is posted. The flag says nothing of what brings data.
inline bool is_inline(const ibv_send_wr& wr) noexcept {
  return (wr.send_flags & IBV_SEND_INLINE) != 0 && !reads_remote(wr.opcode);
}

inline uint32_t remote_key(const ibv_send_wr& wr) noexcept {
  return is_atomic(wr.opcode) ? wr.wr.atomic.rkey : wr.wr.rdma.rkey;
}

inline uint64_t remote_address(const ibv_send_wr& wr) noexcept {
  return is_atomic(wr.opcode) ? wr.wr.atomic.remote_addr : wr.wr.rdma.remote_addr;
}

// IBV_ACCESS_REMOTE_* that a one-sided request needs of the memory it names.
constexpr unsigned remote_right(ibv_wr_opcode opcode) noexcept {
  return is_atomic(opcode)            ? IBV_ACCESS_REMOTE_ATOMIC
         : opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ
                                      : IBV_ACCESS_REMOTE_WRITE;
}

// Bytes of the peer's memory that a one-sided request of `length` names.
constexpr uint64_t remote_bytes(ibv_wr_opcode opcode, uint64_t length) noexcept {
  return is_atomic(opcode) ? 8 : length; // its elements may have more
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
