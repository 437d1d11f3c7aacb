// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Who carries one-sided requests to pinned regions of a peer (rule action "steer"). Plain data,
// compiled once for each queue pair and constant from then on: looked up without lock or
// allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace adverb::policy {

// The NIC; the CPU of the region's owner; the one of both that measurement prefers.
enum class Steer : uint8_t { offload, unload, automatic };

// The requests that can be steered. A WRITE with immediate is a write.
enum class Opcode : uint8_t { write, read };

// Bit N stands for opcode N.
using OpcodeSet = uint8_t;
constexpr OpcodeSet any_opcode = 0b11;
constexpr OpcodeSet set_of(Opcode opcode) noexcept {
  return static_cast<OpcodeSet>(1u << static_cast<unsigned>(opcode));
}

// What a rule matches of requests. All bounds are inclusive.
struct Requests {
  OpcodeSet opcodes = any_opcode;
  uint64_t min_length = 0; // bytes
  uint64_t max_length = std::numeric_limits<uint64_t>::max();
  uint64_t from = 0; // where the request starts in the peer's memory
  uint64_t to = std::numeric_limits<uint64_t>::max();

  bool contain(Opcode opcode, uint64_t length, uint64_t remote_address) const noexcept {
    return (opcodes & set_of(opcode)) != 0 && length >= min_length && length <= max_length &&
           remote_address >= from && remote_address <= to;
  }
  bool operator==(const Requests&) const = default;
};

struct SteerRule {
  Requests requests;
  Steer steer = Steer::offload;
  size_t rule = 0;          // its position in Policy::rules()
  const void* of = nullptr; // that policy
};

// The rule that decides. Null: no rule says so, and the NIC carries the request.
inline const SteerRule* deciding(std::span<const SteerRule> rules, Opcode opcode, uint64_t length,
                                 uint64_t remote_address) noexcept {
  for (const SteerRule& rule : rules)
    if (rule.requests.contain(opcode, length, remote_address))
      return &rule;
  return nullptr;
}

} // namespace adverb::policy
