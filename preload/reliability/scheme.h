// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How the losses of a message are repaired. Each packet names the scheme of its message, so the
// receiver needs no set-up for one.
#pragma once

#include "reliability/layout.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace adverb::reliability {

// What a packet is.
enum class Kind : uint8_t { data = 1, parity, probe, feedback, cancel };

enum class Parity : uint8_t {
  none,       // losses are sent again
  xor_parity, // parity shard i is the XOR of the data shards j with j % m == i
  mds,        // any k of the k + m shards are enough
};

// What makes the sender take a packet for lost.
enum class Detection : uint8_t {
  nack,    // the receiver has seen a later packet and reports this one missing
  timeout, // (1 + alpha) round trips went by without a report that it arrived
};

// What is sent again for a lost packet.
enum class Unit : uint8_t { packet, chunk };

struct Scheme {
  Detection detection = Detection::nack;
  Unit unit = Unit::packet;
  Parity parity = Parity::none;
  uint8_t k = 0; // chunks of a block; 0 without parity
  uint8_t m = 0; // parity chunks of a block

  constexpr bool has_parity() const noexcept { return parity != Parity::none; }
  constexpr bool valid() const noexcept {
    switch (parity) {
    case Parity::none:
      return k == 0 && m == 0;
    case Parity::xor_parity:
      return k != 0 && m != 0 && m <= k && k + m <= 255;
    case Parity::mds:
      return k != 0 && m != 0 && k + m <= 255;
    }
    return false;
  }
  bool operator==(const Scheme& other) const noexcept {
    return memcmp(this, &other, sizeof other) == 0; // a comparison of all bytes at once
  }
};
static_assert(std::has_unique_object_representations_v<Scheme>);

// What each packet says of its message.
struct MessageHead {
  uint64_t message = 0;
  uint64_t bytes = 0;
  Scheme scheme;
  uint32_t immediate = 0;
};

// The blocks of a message under a code.
struct Blocks {
  Layout layout;
  uint32_t k = 1;
  uint32_t m = 0;

  constexpr uint32_t count() const noexcept { return (layout.chunks() + k - 1) / k; }
  constexpr uint32_t chunks_of(uint32_t block) const noexcept {
    return std::min(k, layout.chunks() - block * k);
  }
  // Columns of the longest chunk of a block; its parity has as many.
  constexpr uint32_t columns_of(uint32_t block) const noexcept {
    return layout.columns_of(block * k);
  }
  constexpr uint32_t first_packet(uint32_t block) const noexcept {
    return block * k * layout.columns();
  }
  constexpr uint32_t end_packet(uint32_t block) const noexcept {
    return block + 1 == count() ? layout.packets() : (block + 1) * k * layout.columns();
  }
  constexpr uint32_t block_of(uint32_t packet) const noexcept {
    return packet / (k * layout.columns());
  }
  // Data chunks of a block that have this column.
  constexpr uint32_t chunks_with(uint32_t block, uint32_t column) const noexcept {
    const uint32_t chunks = chunks_of(block);
    return chunks - (layout.columns_of(block * k + chunks - 1) <= column ? 1 : 0);
  }
  // Parity packets: shard i of block b, column c. The index space has no holes but for a last
  // block of one short chunk.
  constexpr uint32_t parity_packet(uint32_t block, uint32_t shard, uint32_t column) const noexcept {
    return (block * m + shard) * layout.columns() + column;
  }
  constexpr uint32_t parity_packets() const noexcept { return count() * m * layout.columns(); }
  constexpr uint32_t block_of_parity(uint32_t packet) const noexcept {
    return packet / (m * layout.columns());
  }
  constexpr uint32_t shard_of_parity(uint32_t packet) const noexcept {
    return packet / layout.columns() % m;
  }
  constexpr uint32_t column_of(uint32_t packet) const noexcept { return packet % layout.columns(); }
  constexpr uint32_t parity_length(uint32_t packet) const noexcept {
    return layout.length(block_of_parity(packet) * k * layout.columns() + column_of(packet));
  }
};

} // namespace adverb::reliability
