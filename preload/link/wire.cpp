// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/wire.h"

namespace adverb::link::wire {
namespace {

size_t payload_of(uint16_t type) {
  switch (static_cast<Type>(type)) {
  case Type::banner:
    return sizeof(Banner);
  case Type::hello:
    return sizeof(Hello);
  case Type::hello_ack:
    return sizeof(HelloAck);
  case Type::auth:
    return sizeof(Auth);
  case Type::bind:
  case Type::probe:
    return sizeof(Bind);
  case Type::unbind:
    return sizeof(Unbind);
  case Type::bind_ack:
    return sizeof(BindAck);
  case Type::claim:
    return sizeof(Claim);
  case Type::slot:
    return sizeof(Slot);
  case Type::prove:
    return sizeof(Prove);
  case Type::prove_ack:
    return sizeof(ProveAck);
  case Type::resume:
    return sizeof(Resume);
  case Type::resume_ack:
    return sizeof(ResumeAck);
  case Type::companion:
    return sizeof(Companion);
  case Type::companion_ack:
    return sizeof(CompanionAck);
  case Type::packet_companion:
    return sizeof(PacketCompanion);
  case Type::packet_companion_ack:
    return sizeof(PacketCompanionAck);
  case Type::add_qp:
  case Type::remove_qp:
    return sizeof(Registration);
  case Type::handed:
    return sizeof(Hello);
  default:
    return 0;
  }
}

} // namespace

Parse parse(std::span<const std::byte> in, Frame& frame) {
  Header h{};
  // The magic is judged as soon as it is there: a stranger on the port is not waited for.
  if (in.size() >= sizeof h.magic) {
    memcpy(&h.magic, in.data(), sizeof h.magic);
    if (h.magic != magic)
      return Parse::malformed;
  }
  if (in.size() < sizeof h)
    return Parse::partial;
  memcpy(&h, in.data(), sizeof h);
  frame.version_there = h.version;
  if (h.version < version_oldest || h.version > version)
    return Parse::wrong_version;
  const size_t expected = payload_of(h.type);
  if (expected == 0 || h.length != expected)
    return Parse::malformed;
  if (in.size() < sizeof h + expected)
    return Parse::partial;
  frame = {static_cast<Type>(h.type), in.subspan(sizeof h, expected), sizeof h + expected,
           h.version};
  return Parse::complete;
}

} // namespace adverb::link::wire
