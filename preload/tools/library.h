// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Where libadverb.so is, and the LD_PRELOAD that has it.
#pragma once

#include <optional>
#include <string>

namespace adverb::tools {

// The library of the build tree or installation that this command belongs to. Nothing, with
// `reason` set, if there is none or LD_PRELOAD cannot name it.
std::optional<std::string> find_library(std::string& reason);

// The value of LD_PRELOAD with the library added behind what is there already; the first library
// wins. `first`, unless empty, goes before all: a sanitizer's runtime insists on that.
std::string preload_with(const std::string& library, const std::string& first);

} // namespace adverb::tools
