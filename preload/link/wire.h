// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Control messages between processes, over TCP and over the broker's Unix socket: a fixed header
// and a fixed payload per type, little-endian, no padding. The header is understood for ever, and
// so are hello and hello_ack as they are in version 2, in which both sides say which versions they
// speak: they go on in the newest that both do. Version 1 was never released.
//
//   initiator -> owner        owner -> initiator
//                             banner           from the broker, at once: somebody here runs adverb
//   hello                     hello_ack        who is who; with a key, proof of it
//   auth (with a key)                          the initiator's proof
//   probe                     bind_ack         is this queue pair yours and connected to mine
//   bind                      bind_ack         the same, and mine may ask for what it may until:
//   unbind                                     mine is bound no more
//   companion                 companion_ack    queue pair numbers, credits, protocol; then each
//                                              side's first message on it is the other's nonce
//   packet_companion          packet_companion_ack
//                                              the same, and where packets reach its ends
//   claim                     slot             where, over mine itself, the initiator can prove
//                                              that mine is mine
//   prove                     prove_ack        mine is served from then on
//   resume                    resume_ack       the connection of this ticket was lost: this one
//                                              stands for it
// Over the Unix socket a process registers and withdraws queue pairs; the broker hands it
// connections (`handed`, with the descriptor and the hello that was read).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace adverb::link::wire {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t magic = 0x42564441; // "ADVB"
inline constexpr uint16_t version = 2;        // the newest
inline constexpr uint16_t version_oldest = 2;

enum class Type : uint16_t {
  hello = 1,
  hello_ack,
  auth,
  bind,
  bind_ack,
  companion,
  companion_ack,
  unbind,
  probe,
  resume,
  resume_ack,
  banner,
  claim,
  slot,
  prove,
  prove_ack,
  packet_companion,
  packet_companion_ack,
  add_qp = 32,
  remove_qp,
  handed,
};

enum class Answer : uint32_t {
  ok = 0,
  no_such_qp, // nobody here owns it
  mismatch,   // it is connected to somebody else
  not_ready,  // it did not reach RTR in time
  refused,    // not allowed, or failed to prove itself
  wrong_version,
  no_resources,
  no_such_protocol, // nothing here is served by channels of this kind
  not_there,        // of a proof: nothing has come by the queue pair, or there is no slot just now
  real_key,         // of a claim: the key is the device's own, and nothing is to be proven for it
};

using Id = std::array<uint8_t, 16>;
using Mac = std::array<uint8_t, 32>;
using Share = std::array<uint8_t, 32>; // a public key of X25519
using Word = std::array<uint8_t, 8>;

struct Header {
  uint32_t magic;
  uint16_t version;
  uint16_t type;
  uint32_t length; // bytes of payload
};
static_assert(sizeof(Header) == 12);

// A capability: it takes companions that packets carry.
inline constexpr uint32_t takes_packets = 1;

// What a side speaks, and can do beyond that (bits that are not known are ignored).
struct Versions {
  uint16_t oldest = version_oldest;
  uint16_t newest = version;
  uint32_t capabilities = takes_packets;
};
// Whether there is one that both speak.
constexpr bool meet(const Versions& a, const Versions& b) noexcept {
  return a.oldest <= a.newest && b.oldest <= b.newest && a.oldest <= b.newest &&
         b.oldest <= a.newest;
}

struct Banner {
  Versions speaks; // the broker's; the owner may be of another
};
struct Hello {
  Id process;
  Id nonce;
  Id dgid; // where the target queue pair is
  uint32_t dqpn;
  uint32_t attempt; // counts up: devices number their queue pairs alike, so several may own one
  Versions speaks;
};
struct HelloAck {
  Id process;
  Id nonce;
  Mac mac; // of the owner, zero without a key
  uint32_t answer;
  uint32_t zero;
  Versions speaks;
  Id ticket; // secret: who has it may go on with what is bound, should the connection be lost
};
struct Auth {
  Mac mac;
};
struct Bind { // probe, too
  Id sgid;
  Id dgid;
  uint32_t sqpn;
  uint32_t dqpn;
  uint16_t slid;
  uint16_t dlid;
  uint32_t patience; // milliseconds that the target's RTR is waited for at most; 0: the owner says
  uint64_t handle;   // the initiator's, echoed
};
struct BindAck {
  uint64_t handle;
  uint64_t remote_handle;
  uint32_t answer;
  uint32_t proof; // 1: requests of the queue pair are served when it has been proven
};
struct Unbind {
  uint64_t handle; // the initiator's
};
struct Claim {
  uint64_t handle; // bound, or about to be
  uint32_t key;    // that a request of the queue pair names
  uint32_t zero;
};
struct Slot { // slots.h
  uint64_t handle;
  uint32_t answer;
  uint32_t kind;
  uint32_t index;
  uint32_t rkey;
  Share share; // the owner's; zero where it is in the slot
};
struct Prove { // proof.h
  uint64_t handle;
  uint32_t companion_qpn; // the initiator's, over which the requests are to come
  uint32_t zero;
  Share share; // the initiator's; zero where it is in the slot
  Share identity;
  Mac mac;
};
struct ProveAck {
  uint64_t handle;
  uint32_t answer;
  uint32_t zero;
  Mac mac; // the owner's proof
};
struct Resume {
  Id ticket; // of the connection that was lost
};
struct ResumeAck {
  uint32_t answer;
  uint32_t zero;
};
struct Companion {
  uint64_t handle;
  uint64_t remote_handle; // whose path the owner is to use; 0: of the one that `handle` is bound to
  Id nonce;
  uint32_t qpn;
  uint32_t psn;
  uint16_t credits;
  uint8_t protocol; // what the channel is for, and the newest version of it that is spoken here
  uint8_t protocol_version;
  uint32_t message_max;
  uint32_t timeout; // of both ends, as ibv_qp_attr has it
  uint32_t zero;
};
struct CompanionAck {
  uint64_t handle;
  Id nonce;
  uint32_t qpn;
  uint32_t psn;
  uint16_t credits;
  uint8_t protocol;
  uint8_t protocol_version;
  uint32_t message_max;
  uint32_t answer;
  uint32_t zero;
};
// The same for a companion that packets carry, and where they reach its end.
using PacketAddress = std::array<std::byte, 96>;
struct PacketCompanion {
  Companion companion;
  PacketAddress address;
};
struct PacketCompanionAck {
  CompanionAck companion; // of an answer that is not ok the address is 0
  PacketAddress address;
};
struct Registration { // add_qp, remove_qp
  Id gid;             // of the device's first port, zero if unknown
  uint32_t qpn;
  uint32_t zero;
};

template <typename T> constexpr Type type_of = Type{};
template <> inline constexpr Type type_of<Banner> = Type::banner;
template <> inline constexpr Type type_of<Hello> = Type::hello;
template <> inline constexpr Type type_of<HelloAck> = Type::hello_ack;
template <> inline constexpr Type type_of<Auth> = Type::auth;
template <> inline constexpr Type type_of<Bind> = Type::bind;
template <> inline constexpr Type type_of<Unbind> = Type::unbind;
template <> inline constexpr Type type_of<BindAck> = Type::bind_ack;
template <> inline constexpr Type type_of<Claim> = Type::claim;
template <> inline constexpr Type type_of<Slot> = Type::slot;
template <> inline constexpr Type type_of<Prove> = Type::prove;
template <> inline constexpr Type type_of<ProveAck> = Type::prove_ack;
template <> inline constexpr Type type_of<Resume> = Type::resume;
template <> inline constexpr Type type_of<ResumeAck> = Type::resume_ack;
template <> inline constexpr Type type_of<Companion> = Type::companion;
template <> inline constexpr Type type_of<CompanionAck> = Type::companion_ack;
template <> inline constexpr Type type_of<PacketCompanion> = Type::packet_companion;
template <> inline constexpr Type type_of<PacketCompanionAck> = Type::packet_companion_ack;

inline constexpr size_t payload_max = 192;

struct Frame {
  Type type;
  std::span<const std::byte> payload;
  size_t bytes;           // of the whole frame
  uint16_t version_there; // of its header, also where it is a wrong one
};

enum class Parse { complete, partial, malformed, wrong_version };

// Looks for one frame at the start of `in`. The payload length is checked against the type.
Parse parse(std::span<const std::byte> in, Frame& frame);

template <typename T> T get(const Frame& frame) {
  T value;
  memcpy(&value, frame.payload.data(), sizeof value);
  return value;
}

template <typename T> std::vector<std::byte> frame(const T& payload, Type type = type_of<T>) {
  std::vector<std::byte> out(sizeof(Header) + sizeof payload);
  const Header h{magic, version, static_cast<uint16_t>(type), sizeof payload};
  memcpy(out.data(), &h, sizeof h);
  memcpy(out.data() + sizeof h, &payload, sizeof payload);
  return out;
}

} // namespace adverb::link::wire
