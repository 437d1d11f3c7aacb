// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The files of policy/ inside the binary, so that an uninstalled adverb has them too. The source is
// made by embed.py at build time.
#pragma once

#include <span>
#include <string_view>

namespace adverb::policy {

struct EmbeddedProfile {
  std::string_view name;
  std::string_view text;
};

extern const std::string_view embedded_schema;
extern const std::string_view embedded_default;
extern const std::span<const EmbeddedProfile> embedded_profiles; // sorted by name

} // namespace adverb::policy
