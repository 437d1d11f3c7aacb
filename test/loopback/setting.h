// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The grammar that the device's settings share: words name=value, separated by commas. A word that
// is wrong is named with a reason, since a setting that is half understood measures another thing.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace adverb::loopback {

// A reason against a word; empty if the word is right.
using Reason = std::string_view;

// A number that begins with a digit and leaves `rest` behind it.
bool take_number(std::string_view text, double& value, std::string_view& rest);

Reason read_count(std::string_view text, uint64_t& value);
Reason read_time(std::string_view text, uint64_t& ns);

// Gives the name and the value of every word to `read(name, value)`, which returns a Reason.
// Returns false at the first word that is wrong, and then `complaint` names it and the reason.
template <typename Read>
bool read_words(std::string_view text, std::string& complaint, const Read& read) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = text.find(',', begin);
    const size_t end = comma == std::string_view::npos ? text.size() : comma;
    const std::string_view word = text.substr(begin, end - begin);
    const size_t equals = word.find('=');
    const Reason reason = equals == std::string_view::npos
                              ? Reason("a word is name=value")
                              : read(word.substr(0, equals), word.substr(equals + 1));
    if (!reason.empty()) {
      complaint = "'" + std::string(word) + "': " + std::string(reason);
      return false;
    }
    begin = end + 1;
  }
  return true;
}

} // namespace adverb::loopback
