// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Values that a policy names by one of a few words: tables of Word, and their look-up.
#pragma once

#include <algorithm>
#include <string_view>

namespace adverb::policy {

template <typename T> struct Word {
  std::string_view name; // in the schema
  T value;
  std::string_view told = {}; // what it means, for a person
};

// The word of a value that the table has.
template <const auto& words> const auto& word_of(const auto& value) {
  return *std::ranges::find_if(words, [&](const auto& word) { return word.value == value; });
}

// The word of that name, which the schema has allowed.
template <const auto& words> const auto& word_named(std::string_view name) {
  return *std::ranges::find_if(words, [&](const auto& word) { return word.name == name; });
}

} // namespace adverb::policy
