// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// "Did you mean …?" for misspelt words: policy keys and values, profiles, subcommands.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace adverb::policy {

// The candidate nearest to `word` by edit distance (insert, delete, replace, swap neighbours; case
// does not count), else one that begins it or that it begins, or an empty view when none may be
// meant.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

// `did you mean "X"?` or, when nothing is near, `INTRO "A", "B"`. `intro` names the list.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates,
                         std::string_view intro);

// "A", "B" and "C" as one phrase, with `last` ("and", "or") before the last one.
std::string quoted_list(std::span<const std::string_view> words, std::string_view last);

// The text in double quotes, control characters and quotes escaped, cut after 60 bytes: what a
// message may safely repeat from a file.
std::string in_quotes(std::string_view text);

} // namespace adverb::policy
