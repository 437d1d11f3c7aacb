// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How a message is cut. A message is cut into chunks, which a program watches. A chunk is cut into
// packets, which the network loses. Packet p of a message is column p % columns of chunk
// p / columns, so no packet spans two chunks and only the last chunk has fewer columns. An erasure
// code works on blocks of k chunks, column by column; parity packets have an index space of their
// own.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace adverb::reliability {

inline constexpr uint32_t word_bits = 64; // bitmaps are cut into words of so many packets or chunks

constexpr uint64_t words_of(uint64_t bits) noexcept {
  return (bits + word_bits - 1) / word_bits;
}

// Mostly of one packet. A popcount is a call where the processor may lack the instruction.
constexpr uint64_t count_of(uint64_t packets) noexcept {
  if ((packets & (packets - 1)) == 0) [[likely]]
    return packets != 0 ? 1 : 0;
  return static_cast<uint64_t>(std::popcount(packets));
}

// Bits first to first + count - 1 of a word; count is at most 64 - first.
constexpr uint64_t bits(uint32_t first, uint32_t count) noexcept {
  return count == 0 ? 0 : (~uint64_t{0} >> (word_bits - count)) << first;
}

struct Cut {
  uint32_t chunk_bytes = 64 * 1024;
  uint32_t packet_bytes = 4096; // of payload

  constexpr bool valid() const noexcept { return packet_bytes != 0 && chunk_bytes >= packet_bytes; }
  constexpr uint32_t columns() const noexcept {
    return (chunk_bytes + packet_bytes - 1) / packet_bytes;
  }
};

// Of one message. A message without bytes has one packet without bytes: something has to arrive.
struct Layout {
  Cut cut;
  uint64_t bytes = 0;

  constexpr uint32_t columns() const noexcept { return cut.columns(); }
  constexpr uint32_t chunks() const noexcept {
    return bytes == 0 ? 1 : static_cast<uint32_t>((bytes + cut.chunk_bytes - 1) / cut.chunk_bytes);
  }
  constexpr uint64_t chunk_length(uint32_t chunk) const noexcept {
    return std::min<uint64_t>(cut.chunk_bytes, bytes - uint64_t{chunk} * cut.chunk_bytes);
  }
  constexpr uint32_t columns_of(uint32_t chunk) const noexcept {
    const uint64_t length = chunk_length(chunk);
    return length == 0 ? 1
                       : static_cast<uint32_t>((length + cut.packet_bytes - 1) / cut.packet_bytes);
  }
  constexpr uint32_t packets() const noexcept {
    return (chunks() - 1) * columns() + columns_of(chunks() - 1);
  }
  // Where a packet lies in its message.
  struct Place {
    uint64_t offset = 0;
    uint32_t length = 0;
  };
  constexpr Place place(uint32_t packet) const noexcept {
    const uint32_t in_chunk = columns();
    const uint64_t chunk = packet / in_chunk;
    const uint64_t offset =
        chunk * cut.chunk_bytes + uint64_t{packet % in_chunk} * cut.packet_bytes;
    const uint64_t end = std::min(chunk * cut.chunk_bytes + cut.chunk_bytes, bytes);
    return {offset, static_cast<uint32_t>(std::min<uint64_t>(cut.packet_bytes, end - offset))};
  }
  constexpr uint32_t chunk_of(uint32_t packet) const noexcept { return packet / columns(); }
  constexpr uint64_t offset(uint32_t packet) const noexcept { return place(packet).offset; }
  constexpr uint32_t length(uint32_t packet) const noexcept { return place(packet).length; }
  // Whether packet indices have 32 bits, those of parity packets of at most as many bytes included.
  static constexpr bool fits(const Cut& cut, uint64_t bytes) noexcept {
    return bytes / cut.chunk_bytes < (uint64_t{1} << 31) / cut.columns() - 256;
  }
};

} // namespace adverb::reliability
