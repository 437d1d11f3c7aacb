// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How much may be under way to a peer by packets, as the policy's "staging" says. What is under way
// in a round trip is all that a path can carry in it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace adverb::link::packet_room {

inline constexpr uint64_t message_bytes = uint64_t{64} << 10; // of payload, at most

// Messages of a channel that wait for their answers: a quarter of `budget` (Device::budget()). A
// message that loses a packet takes a round trip more, and those behind it wait for it to be handed
// on. Their buffers become resident once they are used: three times as much at each end.
constexpr uint32_t messages(uint64_t budget) noexcept {
  constexpr uint64_t least = 128, most = 8192; // 8 MiB and 512 MiB
  return static_cast<uint32_t>(std::clamp(budget / 4 / message_bytes, least, most));
}

inline constexpr uint64_t packets_to_send = 256; // buffers

// Buffers for packets that arrive, of `packet_bytes` each. A quarter of what is `left` of the
// budget pays for them and for those to send, or as few as they can do with: other paths want some,
// too. 0: there is no room. Queues of many devices hold no more than 32,767.
constexpr uint32_t receives(uint64_t left, uint64_t packet_bytes) noexcept {
  constexpr uint64_t least = 256, most = 32767;
  const uint64_t affordable = std::max(left / 4 / packet_bytes, packets_to_send + least);
  const uint64_t count = std::min(affordable - packets_to_send, most);
  return (count + packets_to_send) * packet_bytes <= left ? static_cast<uint32_t>(count) : 0;
}

// Bytes of payload that may be under way: an eighth of the buffers is kept for reports.
constexpr uint64_t under_way(uint64_t budget, uint64_t mtu) noexcept {
  const uint64_t buffers = receives(budget, mtu + 64);
  return std::min(messages(budget) * message_bytes, buffers / 8 * 7 * mtu);
}

} // namespace adverb::link::packet_room
