// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The actions of rules, one row each. Compiling, the search for rules that never fire and
// `adverb policy explain` read the rows.
#pragma once

#include "policy/policy.h"
#include "policy/rule.h"

#include <span>
#include <string>
#include <string_view>

namespace adverb::policy {

// What an action decides about, and so the keys of `match` that can hide it behind other rules.
enum class Subject : uint8_t { region, queue_pair, device, request };

struct Action {
  std::string_view key; // as in the schema
  Subject subject;
  void (*read)(Rule& rule, std::string_view value); // a value that the schema allows
  bool (*set)(const Rule& rule);
  std::string (*value)(const Rule& rule); // in the schema's words; the rule sets the action
  // What the policy's answer means for a queue pair, to a person; empty: nothing to tell. Null: it
  // does not decide about queue pairs, or there is more to say (tools/explain_steer.cpp).
  std::string_view (*answer)(const Policy& policy, const QpQuery& query);
};

extern const std::span<const Action> actions;

} // namespace adverb::policy
