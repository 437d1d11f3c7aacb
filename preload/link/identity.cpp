// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/identity.h"
#include "link/hmac.h"
#include "policy/policy.h"

#include <cstring>
#include <sys/random.h>
#include <vector>

namespace adverb::link {

wire::Id random_id() {
  wire::Id id{};
  size_t have = 0;
  while (have < id.size()) {
    const ssize_t n = getrandom(id.data() + have, id.size() - have, 0);
    have += n > 0 ? static_cast<size_t>(n) : 0;
  }
  return id;
}

wire::Id id_of(const ibv_gid& gid) {
  wire::Id id;
  memcpy(id.data(), gid.raw, id.size());
  return id;
}

wire::Mac prove(char speaker, const wire::Id& initiator_nonce, const wire::Id& owner_nonce) {
  std::vector<std::byte> text{static_cast<std::byte>(speaker)};
  for (const auto& nonce : {initiator_nonce, owner_nonce})
    for (const uint8_t b : nonce)
      text.push_back(static_cast<std::byte>(b));
  return hmac_sha256(policy::current().link().key, text);
}

} // namespace adverb::link
