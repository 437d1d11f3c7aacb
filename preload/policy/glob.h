// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Shell patterns without allocation or locale: '*', '?', '[a-z]', '[!a-z]', '\' takes the next
// character literally. '*' and '?' also match '/'.
#pragma once

#include <string_view>

namespace adverb::policy {

bool glob_matches(std::string_view pattern, std::string_view text) noexcept;

// A pattern without any of the special characters.
bool glob_is_literal(std::string_view pattern) noexcept;

// Program patterns: against the whole path when the pattern holds a '/', else the last part of it.
bool program_matches(std::string_view pattern, std::string_view path) noexcept;

} // namespace adverb::policy
