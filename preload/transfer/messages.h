// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What travels over a companion queue pair: requests from the initiator's process, and to each
// exactly one reply from the owner's. Fixed-width little-endian fields, no padding, payload behind.
//
// A request names the target queue pair by the handle the hello gave for it. `run` orders restarts:
// after a reply that is not `ok` the responder answers every further request of that target with a
// `run` not above the failed one with `halted`, executing none, until the initiator has settled the
// failure and goes on with a higher one. So nothing overtakes a failure, however much is in flight.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

namespace adverb::transfer {

static_assert(std::endian::native == std::endian::little, "messages are little-endian as they lie");

enum class Kind : uint8_t {
  write = 1,   // payload: bytes for [address, +length)
  read = 2,    // reply's payload: bytes of [address, +length)
  query = 3,   // is `key` a virtual key here? reply: ok = virtual, not_virtual = real or unknown
  grant = 4,   // register [address, +length) for an atomic; reply: rkey and grant id
  release = 5, // give back grant `address`
};

enum class Status : uint8_t {
  ok = 0,
  refused = 1,     // key, bounds, rights or queue pair state: the NIC shall say so itself
  not_virtual = 2, // the key is not a virtual one (any more): go by the NIC
  halted = 3,      // not executed: behind a failure
  fault = 4,       // the owner unmapped or protected the memory
};

enum : uint8_t {
  last_part = 1,      // the last part of its work request
  with_immediate = 2, // a WRITE_WITH_IMM: `receive` says which receive its length belongs to
};

struct RequestHeader {
  uint8_t kind;
  uint8_t flags;
  uint16_t zero;
  uint32_t run;
  uint64_t target;        // handle of the responder's queue pair
  uint64_t source;        // handle of the initiator's, echoed
  uint64_t request;       // the initiator's sequence number of the work request, echoed
  uint64_t address;       // first byte of this part
  uint64_t total_address; // first byte of the whole work request
  uint64_t total;         // bytes of the whole work request
  uint64_t receive;       // with_immediate: count of receive-consuming messages up to this one
  uint32_t key;
  uint32_t length; // bytes of this part
};
static_assert(sizeof(RequestHeader) == 72 && std::is_trivially_copyable_v<RequestHeader>);

struct ReplyHeader {
  uint8_t kind;
  uint8_t status;
  uint16_t zero;
  uint32_t run;
  uint64_t source;
  uint64_t request;
  uint64_t offset;      // of a READ's payload in its work request
  uint64_t grant;       // grant: its id, for `release`
  uint64_t grant_start; // grant: the addresses `rkey` covers, as work requests use them
  uint64_t grant_bytes;
  uint32_t rkey;
  uint32_t length; // bytes of payload that follow
};
static_assert(sizeof(ReplyHeader) == 64 && std::is_trivially_copyable_v<ReplyHeader>);

inline constexpr size_t header_bytes = sizeof(RequestHeader);

// A message cut into header and payload; nullopt when it is not well-formed.
template <typename Header> struct Parsed {
  Header header;
  std::span<const std::byte> payload;
};

inline std::optional<Parsed<RequestHeader>> parse_request(std::span<const std::byte> bytes) {
  Parsed<RequestHeader> p{};
  if (bytes.size() < sizeof p.header)
    return std::nullopt;
  memcpy(&p.header, bytes.data(), sizeof p.header);
  p.payload = bytes.subspan(sizeof p.header);
  const auto& h = p.header;
  if (h.kind < static_cast<uint8_t>(Kind::write) || h.kind > static_cast<uint8_t>(Kind::release) ||
      h.zero != 0 || (h.flags & ~(last_part | with_immediate)) != 0)
    return std::nullopt;
  const size_t expected = h.kind == static_cast<uint8_t>(Kind::write) ? h.length : 0;
  if (p.payload.size() != expected)
    return std::nullopt;
  // A part lies inside its work request, without wrapping.
  if (h.kind <= static_cast<uint8_t>(Kind::read) &&
      (h.address < h.total_address || h.length > h.total ||
       h.address - h.total_address > h.total - h.length))
    return std::nullopt;
  return p;
}

inline std::optional<Parsed<ReplyHeader>> parse_reply(std::span<const std::byte> bytes) {
  Parsed<ReplyHeader> p{};
  if (bytes.size() < sizeof p.header)
    return std::nullopt;
  memcpy(&p.header, bytes.data(), sizeof p.header);
  p.payload = bytes.subspan(sizeof p.header);
  const auto& h = p.header;
  if (h.kind < static_cast<uint8_t>(Kind::write) || h.kind > static_cast<uint8_t>(Kind::release) ||
      h.zero != 0 || h.status > static_cast<uint8_t>(Status::fault) || p.payload.size() != h.length)
    return std::nullopt;
  return p;
}

} // namespace adverb::transfer
