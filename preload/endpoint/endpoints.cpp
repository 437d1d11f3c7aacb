// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "endpoint/endpoints.h"
#include "world/world.h"

#include <cerrno>
#include <mutex>

namespace adverb::endpoint {

uint64_t Endpoints::make(World& world, ibv_pd* pd, const adverb_endpoint_options& options,
                         int& why) {
  auto endpoint = Endpoint::make(world, pd, options, why);
  if (endpoint == nullptr)
    return 0;
  const uint64_t number = world.next_endpoint.fetch_add(1);
  if (number >= endpoints_most) {
    why = ENOSPC;
    return 0;
  }
  const std::lock_guard hold(lock_);
  all_.emplace(number, std::move(endpoint));
  return number;
}

std::shared_ptr<Endpoint> Endpoints::find(uint64_t endpoint) const {
  const std::lock_guard hold(lock_);
  const auto at = all_.find(endpoint);
  return at == all_.end() ? nullptr : at->second;
}

uint64_t Endpoints::message(uint64_t endpoint, MessageName name) noexcept {
  return endpoint << message_bits | name.number << 1 | (name.sends ? 1 : 0);
}

std::shared_ptr<Endpoint> Endpoints::find_message(uint64_t message, MessageName& name) const {
  name.sends = (message & 1) != 0;
  name.number = (message & ((uint64_t{1} << message_bits) - 1)) >> 1;
  return find(message >> message_bits);
}

std::shared_ptr<Endpoint> Endpoints::remove(uint64_t endpoint) {
  const std::lock_guard hold(lock_);
  const auto at = all_.find(endpoint);
  if (at == all_.end())
    return nullptr;
  auto out = std::move(at->second);
  all_.erase(at);
  return out;
}

} // namespace adverb::endpoint

namespace adverb {

endpoint::Endpoints& World::endpoints() {
  return parts.endpoints.get([] { return std::make_shared<endpoint::Endpoints>(); });
}

} // namespace adverb
