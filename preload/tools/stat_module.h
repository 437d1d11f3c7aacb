// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The part of `adverb stat` that adverb.ko answers.
#pragma once

#include "module/client.h"

#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <sys/types.h>

namespace adverb::tools {

struct ModuleStat {
  module::Counts counts{}; // of all regions since the module was loaded
  module::Limits limits;
  std::vector<module::Region> regions; // by process and number
};

// Regions of `pid` only, unless it is 0. Absent is the usual failure: the module is not loaded.
module::Result<ModuleStat> ask_module(pid_t pid);

// Numbers that are zero are left out unless `all`.
void print_module(const ModuleStat& module, bool all);
nlohmann::ordered_json to_json(const ModuleStat& module);

// A line for each event until there are no more to be had; then an exit status, after saying why.
int follow_events(bool json);

} // namespace adverb::tools
