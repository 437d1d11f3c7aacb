// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/proof.h"

#include <array>
#include <string_view>
#include <type_traits>
#include <vector>

#include <sodium.h>

namespace adverb::link {
namespace {

static_assert(sizeof(wire::Share) == crypto_scalarmult_BYTES);
static_assert(sizeof(wire::Mac) == crypto_auth_hmacsha256_BYTES);
// Nothing in it is left to the compiler.
static_assert(std::has_unique_object_representations_v<Transcript>);

// It chooses the fastest of its ways for this processor; without, none is chosen and all results
// are the same.
void initialise() {
  [[maybe_unused]] const int done = sodium_init(); // once, whoever calls it
}

wire::Mac hmac(std::span<const uint8_t> key, std::span<const std::byte> data) {
  initialise();
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key.data(), key.size());
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(data.data()),
                                data.size());
  wire::Mac mac;
  crypto_auth_hmacsha256_final(&state, mac.data());
  sodium_memzero(&state, sizeof state);
  return mac;
}

struct Common {
  const KeyPair* mine;
  const wire::Share* theirs;
};

std::optional<Proof> prove(const std::array<Common, 2>& commons, std::span<const uint8_t> key,
                           const Transcript& transcript) {
  initialise();
  std::vector<uint8_t> material(commons.size() * crypto_scalarmult_BYTES);
  uint8_t* at = material.data();
  for (const Common& common : commons) {
    if (crypto_scalarmult(at, common.mine->secret.data(), common.theirs->data()) != 0)
      return std::nullopt;
    at += crypto_scalarmult_BYTES;
  }
  material.insert(material.end(), key.begin(), key.end());
  static constexpr std::string_view salt = "adverb: this queue pair is mine, 2";
  wire::Mac extracted = hmac({reinterpret_cast<const uint8_t*>(salt.data()), salt.size()},
                             std::as_bytes(std::span(material)));
  // One block of output each, so the expansion's counter is 1.
  const auto expand = [&](std::string_view speaker) {
    const auto all = std::as_bytes(std::span(&transcript, 1));
    std::vector info(all.begin(), all.end());
    const auto who = std::as_bytes(std::span(speaker.data(), speaker.size()));
    info.insert(info.end(), who.begin(), who.end());
    info.push_back(std::byte{1});
    return hmac(extracted, info);
  };
  const Proof proof{expand("initiator"), expand("owner")};
  sodium_memzero(material.data(), material.size());
  sodium_memzero(extracted.data(), extracted.size());
  return proof;
}

} // namespace

wire::Mac hmac_sha256(std::span<const uint8_t> key, std::span<const std::byte> data) {
  return hmac(key, data);
}

bool equal(const wire::Mac& a, const wire::Mac& b) noexcept {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

KeyPair new_key_pair(Entropy& entropy) {
  initialise();
  KeyPair pair;
  entropy.fill(pair.secret.data(), pair.secret.size());
  crypto_scalarmult_base(pair.open.data(), pair.secret.data());
  return pair;
}

std::optional<Proof> prove_as_owner(const KeyPair& mine, std::span<const uint8_t> key,
                                    const Transcript& transcript) {
  return prove({Common{&mine, &transcript.initiator_share}, {&mine, &transcript.identity}}, key,
               transcript);
}

std::optional<Proof> prove_as_initiator(const KeyPair& mine, const KeyPair& identity,
                                        std::span<const uint8_t> key,
                                        const Transcript& transcript) {
  return prove({Common{&mine, &transcript.owner_share}, {&identity, &transcript.owner_share}}, key,
               transcript);
}

wire::Mac know_key(std::span<const uint8_t> key, char speaker, const wire::Id& initiator_nonce,
                   const wire::Id& owner_nonce) {
  std::vector<std::byte> text{static_cast<std::byte>(speaker)};
  for (const auto& nonce : {initiator_nonce, owner_nonce})
    for (const uint8_t b : nonce)
      text.push_back(static_cast<std::byte>(b));
  return hmac_sha256(key, text);
}

} // namespace adverb::link
