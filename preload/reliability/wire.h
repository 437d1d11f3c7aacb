// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What endpoints send each other: one packet in one message of the queue pair, a header in front of
// the payload. Little-endian, no padding, nothing wraps.
//
//   data, parity   the payload belongs to packet `packet` of message `message`
//   probe, cancel  no payload: how do things stand; end this message
//   feedback       the payload is a report of the receiver (reliability/feedback.h)
#pragma once

#include "reliability/feedback.h"
#include "reliability/scheme.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

namespace adverb::reliability::wire {

static_assert(std::endian::native == std::endian::little);

struct Header {
  // The same in all packets of one kind of a message.
  uint64_t epoch = 0; // of the two endpoints, in this direction: packets of others are dropped
  uint64_t message = 0;
  uint64_t bytes = 0; // of the message
  uint32_t immediate = 0;
  Kind kind = Kind::data;
  uint8_t scheme = 0; // detection, unit and parity: scheme_byte()
  uint8_t k = 0;
  uint8_t m = 0;
  // Of the packet.
  uint64_t sequence = 0; // among all that the endpoint has sent; of reports, among them, from 1
  uint32_t packet = 0;
  uint16_t length = 0;     // of the payload
  uint16_t round_trip = 0; // as the sender sees it, in units of 16 us; 0: it does not know

  bool is_of_the_same(const Header& other) const noexcept {
    return memcmp(this, &other, offsetof(Header, sequence)) == 0;
  }
};
static_assert(offsetof(Header, sequence) == 32 && std::has_unique_object_representations_v<Header>);
static_assert(sizeof(Header) == 48);

// A packet has room for so many bytes of payload at least: a report with one section in it.
inline constexpr uint32_t payload_least = 128;
inline constexpr uint64_t round_trip_unit = 16'000; // nanoseconds

uint8_t scheme_byte(const Scheme& scheme) noexcept;
// nullopt if no scheme has this byte with this k and m.
std::optional<Scheme> scheme_of(uint8_t byte, uint8_t k, uint8_t m) noexcept;

// Bitmap words that a report has room for in so many bytes of payload, beside its sections' heads.
size_t feedback_words(size_t payload_bytes) noexcept;
// Writes a report; returns its length, which is at most `out`. Sections without room are left out.
size_t write(const Feedback& feedback, std::span<std::byte> out) noexcept;
// nullopt if the bytes are no report.
std::optional<Feedback> read(std::span<const std::byte> in);

} // namespace adverb::reliability::wire
