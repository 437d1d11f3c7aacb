// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The endpoints of a World, and the numbers by which a program names them and their messages. No
// number is given twice, so one that is used after its object has gone names nothing. Any thread.
#pragma once

#include "endpoint/endpoint.h"
#include "world/sync.h"

#include <cstdint>
#include <memory>
#include <unordered_map>

namespace adverb::endpoint {

// The name of an endpoint is below 2^23 and stands in front of those of its messages.
inline constexpr unsigned message_bits = 40;
inline constexpr uint64_t endpoints_most = uint64_t{1} << 23;

class Endpoints {
public:
  // 0: the endpoint cannot be made; `why` is an errno value.
  uint64_t make(World& world, ibv_pd* pd, const adverb_endpoint_options& options, int& why);
  std::shared_ptr<Endpoint> find(uint64_t endpoint) const;
  // Of a message: its endpoint, and its name there.
  std::shared_ptr<Endpoint> find_message(uint64_t message, MessageName& name) const;
  static uint64_t message(uint64_t endpoint, MessageName name) noexcept;
  std::shared_ptr<Endpoint> remove(uint64_t endpoint);

private:
  mutable Mutex lock_;
  std::unordered_map<uint64_t, std::shared_ptr<Endpoint>> all_;
};

} // namespace adverb::endpoint
