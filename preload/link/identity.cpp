// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/identity.h"
#include "link/hmac.h"

#include <cstring>
#include <vector>

namespace adverb::link {

wire::Id random_id(Entropy& entropy) {
  wire::Id id;
  entropy.fill(id.data(), id.size());
  return id;
}

wire::Id id_of(const ibv_gid& gid) {
  wire::Id id;
  memcpy(id.data(), gid.raw, id.size());
  return id;
}

wire::Mac prove(std::span<const uint8_t> key, char speaker, const wire::Id& initiator_nonce,
                const wire::Id& owner_nonce) {
  std::vector<std::byte> text{static_cast<std::byte>(speaker)};
  for (const auto& nonce : {initiator_nonce, owner_nonce})
    for (const uint8_t b : nonce)
      text.push_back(static_cast<std::byte>(b));
  return hmac_sha256(key, text);
}

} // namespace adverb::link
