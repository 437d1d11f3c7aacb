// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What travels over a companion queue pair: requests from the initiator's process, and to each
// exactly one reply from the owner's. Fixed-width little-endian fields, no padding, payload behind.
//
// Requests of one queue pair may share a message, from version 2 of the protocol on: each begins at
// the next multiple of 8 bytes behind the one before. Their replies share one, too, in their order:
// a message is answered by one message, and that is what a credit is for.
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

// Those of handlers.def, where each has its line.
enum class Kind : uint8_t {
#define HANDLER(name, number, version, right, key, order, shape) name = number,
#include "transfer/handlers.def"
};

inline constexpr size_t kinds_max = 128;

// What a request has to be, beyond its header.
enum class Shape : uint8_t {
  part,          // of a work request: [address, +length) lies in [total_address, +total)
  bytes_of_part, // the same, and its bytes are the payload
  bare,          // no payload
  any,
};

enum class Status : uint8_t {
  ok = 0,
  refused = 1,     // key, bounds, rights or queue pair state: the NIC shall say so itself
  not_virtual = 2, // the key is not a virtual one (any more): go by the NIC
  halted = 3,      // not executed: behind a failure
  fault = 4,       // the owner unmapped or protected the memory
  unsupported = 5, // the owner's adverb does not know the kind, or not this version of it
  // lease: the peer has what it may have, and is to give one back for another; send: there is no
  // room for bytes that have come ahead
  full = 6,
};

enum : uint8_t {
  last_part = 1,      // the last part of its work request
  with_immediate = 2, // a WRITE_WITH_IMM: `receive` says which receive its length belongs to
};

// Of a reply to a READ, to who knows of views: there may be one of its region.
inline constexpr uint16_t has_views = 1;
// Of a reply to who knows of that: the owner's CPU is short, and does better without requests that
// the device could carry as well.
inline constexpr uint16_t short_of_cpu = 2;

inline constexpr uint64_t by_immediate = uint64_t{1} << 63;

struct RequestHeader {
  uint8_t kind;
  uint8_t flags;
  uint8_t version; // of the kind
  uint8_t zero;
  uint32_t run;
  uint64_t target;        // handle of the responder's queue pair
  uint64_t source;        // handle of the initiator's, echoed
  uint64_t request;       // the initiator's sequence number of the work request, echoed
  uint64_t address;       // first byte of this part; send: its offset
  uint64_t total_address; // first byte of the whole work request; send: 0
  uint64_t total;         // bytes of the whole work request
  // with_immediate, send: count of receive-consuming messages up to this one; on UC, where messages
  // are lost, by_immediate | its immediate. lease: the one that is given back for it, or 0
  uint64_t receive;
  uint32_t key;
  uint32_t length; // bytes of this part
};
static_assert(sizeof(RequestHeader) == 72 && std::is_trivially_copyable_v<RequestHeader>);

struct ReplyHeader {
  uint8_t kind;
  uint8_t status;
  uint16_t flags; // has_views, short_of_cpu
  uint32_t run;
  uint64_t source;
  uint64_t request;
  // Of a READ's payload in its work request; lease: its rights; grant: 1, for this atomic alone.
  uint64_t offset;
  uint64_t grant; // grant, lease, view: its number, for `release` and `yield`
  // The same: the addresses `rkey` covers, as work requests use them. lease, that is full: what was
  // asked for. view: its payload is the pattern, as it lies in a page.
  uint64_t grant_start;
  uint64_t grant_bytes;
  // The same; query, that is not virtual: under which the owner's CPU serves the region, or 0.
  uint32_t rkey;
  uint32_t length; // bytes of payload that follow
};
static_assert(sizeof(ReplyHeader) == 64 && std::is_trivially_copyable_v<ReplyHeader>);

inline constexpr size_t header_bytes = sizeof(RequestHeader);

// Beside requests and replies. From the owner: `count` keys of its, of 4 bytes each behind the
// header, have ended; or leases of these numbers are called back. Back, with none: the notice of
// that number has been taken note of, and no request is under way by any of the leases.
inline constexpr uint8_t notice_kind = kinds_max;

enum class Of : uint8_t { keys, leases };

struct NoticeHeader {
  uint8_t kind;
  Of of;
  uint16_t count;
  uint32_t number;
};
static_assert(sizeof(NoticeHeader) == 8 && std::is_trivially_copyable_v<NoticeHeader>);

inline bool is_notice(std::span<const std::byte> bytes) {
  return !bytes.empty() && bytes[0] == std::byte{notice_kind};
}

// Messages may be shared by so many bytes of requests, which bring so many of replies.
inline constexpr size_t shared_max = 2048;
inline constexpr uint8_t version_sharing = 2; // from which on they are
inline constexpr uint8_t version_leases = 3;  // from which on the owner leases
inline constexpr uint8_t version_views = 4;   // from which on it has views
inline constexpr uint8_t version_spares = 5;  // from which on it may say that its CPU is short
inline constexpr uint8_t version_sends = 6;   // from which on it may take the bytes of SENDs ahead

// Where in its message the next one begins.
constexpr size_t next_place(size_t end) noexcept {
  return (end + 7) & ~size_t{7};
}

// A message cut into header and payload; nullopt when it is not well-formed.
template <typename Header> struct Parsed {
  Header header;
  std::span<const std::byte> payload;
};

// `rest` begins with a header, and moves behind it and its payload, to the next one's place.
inline std::optional<std::span<const std::byte>> take_payload(std::span<const std::byte>& rest,
                                                              size_t header, size_t payload) {
  if (payload > rest.size() - header)
    return std::nullopt;
  const auto taken = rest.subspan(header, payload);
  const size_t end = header + payload;
  // What is behind it is another one, or nothing.
  if (end != rest.size() && next_place(end) >= rest.size())
    return std::nullopt;
  rest = rest.subspan(end == rest.size() ? end : next_place(end));
  return taken;
}

inline bool fits(const Parsed<RequestHeader>& request, Shape shape) {
  const auto& h = request.header;
  switch (shape) {
  case Shape::any:
    return true;
  case Shape::bare:
    return request.payload.empty();
  default:
    // A part lies inside its work request. That may wrap, as its program has it: who serves it
    // refuses the whole.
    return request.payload.size() == (shape == Shape::bytes_of_part ? h.length : 0) &&
           h.length <= h.total && h.address - h.total_address <= h.total - h.length;
  }
}

// The first request of `rest`, which moves behind it. `shape_of` says of a header what shape it is
// to have; one of any shape is the last of its message.
template <typename ShapeOf>
std::optional<Parsed<RequestHeader>> next_request(std::span<const std::byte>& rest,
                                                  const ShapeOf& shape_of) {
  Parsed<RequestHeader> p{};
  if (rest.size() < sizeof p.header)
    return std::nullopt;
  memcpy(&p.header, rest.data(), sizeof p.header);
  const auto& h = p.header;
  if (h.kind == 0 || h.kind >= kinds_max || h.zero != 0 ||
      (h.flags & ~(last_part | with_immediate)) != 0)
    return std::nullopt;
  const Shape shape = shape_of(h);
  const size_t carried = shape == Shape::any             ? rest.size() - sizeof h
                         : shape == Shape::bytes_of_part ? h.length
                                                         : 0;
  const auto payload = take_payload(rest, sizeof h, carried);
  if (!payload)
    return std::nullopt;
  p.payload = *payload;
  return fits(p, shape) ? std::optional(p) : std::nullopt;
}

// The same of a reply.
inline std::optional<Parsed<ReplyHeader>> next_reply(std::span<const std::byte>& rest) {
  Parsed<ReplyHeader> p{};
  if (rest.size() < sizeof p.header)
    return std::nullopt;
  memcpy(&p.header, rest.data(), sizeof p.header);
  const auto& h = p.header;
  if (h.kind == 0 || h.kind >= kinds_max || (h.flags & ~(has_views | short_of_cpu)) != 0 ||
      h.status > static_cast<uint8_t>(Status::full))
    return std::nullopt;
  const auto payload = take_payload(rest, sizeof h, h.length);
  if (!payload)
    return std::nullopt;
  p.payload = *payload;
  return p;
}

inline std::optional<Parsed<NoticeHeader>> parse_notice(std::span<const std::byte> bytes) {
  Parsed<NoticeHeader> p{};
  if (bytes.size() < sizeof p.header)
    return std::nullopt;
  memcpy(&p.header, bytes.data(), sizeof p.header);
  p.payload = bytes.subspan(sizeof p.header);
  if (p.header.kind != notice_kind || p.header.of > Of::leases ||
      p.payload.size() != p.header.count * sizeof(uint32_t))
    return std::nullopt;
  return p;
}

} // namespace adverb::transfer
