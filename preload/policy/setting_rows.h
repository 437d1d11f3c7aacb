// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The settings of a process that are one value each, one row each. Compiling and
// `adverb policy explain` read the rows; lists of hosts and files are read by compile.cpp.
#pragma once

#include "policy/json.h"
#include "policy/settings.h"

#include <span>
#include <string>
#include <string_view>

namespace adverb::policy {

struct SettingRow {
  std::string_view group; // "link" or "log"; empty: a key of the document itself
  std::string_view key;   // as in the schema
  void (*read)(Settings& settings, const Json& value); // a value that the schema allows
  std::string (*text)(const Settings& settings);       // what holds, for a person

  std::string name() const; // "link.port"
};

extern const std::span<const SettingRow> setting_rows;

} // namespace adverb::policy
