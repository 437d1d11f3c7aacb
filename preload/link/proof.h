// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What two ends prove themselves by: the queue pair itself, and a key that both know, if they do.
//
// Each side draws an X25519 key pair for every proof. One of the two public keys travels over the
// queue pair alone, into or out of a slot of the owner's (slots.h), the other over the control
// connection; so the secret that follows from both is known to who uses this end of the queue pair
// and to who has the memory at its other end, and to nobody who hears, alters or relays the
// connection. Where nothing but a word can be had by the queue pair it is a random one beside the
// keys, which then both travel over the connection: who relays that would have to find it, from a
// MAC over it, before the slot's time is over. What is proven is a transcript: both queue pairs,
// both processes, and the companion queue pair over which requests are to come, whose numbers were
// exchanged over the connection.
//
// The initiator's process has one more key pair, which is its *identity*: who has proven a queue
// pair once is the only one who may prove it again.
//
// The cryptography is libsodium's. Thread-safe; initialised at first use.
#pragma once

#include "link/wire.h"
#include "world/entropy.h"

#include <cstdint>
#include <optional>
#include <span>

namespace adverb::link {

struct KeyPair {
  wire::Share open{};
  std::array<uint8_t, 32> secret{};
};
KeyPair new_key_pair(Entropy& entropy);

// Both ends have it alike, or one of them is not who the other takes it for.
struct Transcript {
  wire::Id initiator; // the processes, as their hellos name them
  wire::Id owner;
  wire::Id initiator_nonce; // of the connection
  wire::Id owner_nonce;
  wire::Bind bind;        // patience is no part of it: 0
  uint64_t remote_handle; // the owner's queue pair
  uint32_t slot_kind;
  uint32_t slot_rkey;
  uint32_t slot_index;
  uint32_t zero;
  wire::Companion companion; // as the initiator has said of it
  wire::CompanionAck companion_ack;
  wire::Share identity; // the initiator's
  wire::Share initiator_share;
  wire::Share owner_share;
  wire::Word word; // that was read by the queue pair, 0 where a share was
};

// What an end can say once it has all shares.
struct Proof {
  wire::Mac initiator; // shows that its sender is the one, or the other
  wire::Mac owner;
};
// By RFC 5869 (HKDF, with HMAC-SHA-256): extracted from what both shares and what the owner's and
// the identity have in common, and from `key`, the pre-shared one, empty if there is none; expanded
// over the transcript, which holds the other's shares, and who speaks. Nullopt: one of these is of
// those that have the same in common with all (RFC 7748, 6.1).
std::optional<Proof> prove_as_owner(const KeyPair& mine, std::span<const uint8_t> key,
                                    const Transcript& transcript);
std::optional<Proof> prove_as_initiator(const KeyPair& mine, const KeyPair& identity,
                                        std::span<const uint8_t> key, const Transcript& transcript);

// Of the key, before there is a queue pair to speak of: over both nonces and who speaks, 'i' or
// 'o'.
wire::Mac know_key(std::span<const uint8_t> key, char speaker, const wire::Id& initiator_nonce,
                   const wire::Id& owner_nonce);

wire::Mac hmac_sha256(std::span<const uint8_t> key, std::span<const std::byte> data);
// In constant time.
bool equal(const wire::Mac& a, const wire::Mac& b) noexcept;

} // namespace adverb::link
