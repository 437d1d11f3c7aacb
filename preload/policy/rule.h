// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One rule in its compiled form, and what a whole file compiles to.
#pragma once

#include "policy/backends.h"
#include "policy/settings.h"
#include "policy/steer.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace adverb::policy {

// The remote rights of a region as a number 0…7: bit 0 write, bit 1 read, bit 2 atomic. A match is
// a set of such numbers, so "remote" and "local_only" are plain bit masks and sets can be compared.
using RightsSet = uint8_t;
constexpr RightsSet any_rights = 0xff;

// Bit N stands for enum ibv_qp_type N.
using QpTypeSet = uint32_t;
constexpr QpTypeSet any_qp_type = ~0u;

struct Match {
  std::vector<std::string> programs; // globs; empty matches all
  std::vector<std::string> devices;
  QpTypeSet qp_types = any_qp_type;
  RightsSet rights = any_rights;
  uint64_t min_size = 0;
  uint64_t max_size = std::numeric_limits<uint64_t>::max(); // inclusive
  std::vector<Cidr> peers;                                  // empty matches all
  Requests requests;
};

struct Rule {
  size_t index = 0; // in the file
  std::string name; // never empty
  Match match;
  const BackendTraits* backend = nullptr; // null: the rule does not say
  std::optional<Peers> peers;
  std::optional<Order> order;
  std::optional<uint64_t> copy_below;
  std::optional<Steer> steer;
  std::optional<Reliability> reliability;
};

struct Document {
  std::string source;
  std::string description;
  Settings settings;
  std::vector<Rule> rules;
};

} // namespace adverb::policy
