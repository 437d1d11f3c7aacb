// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "policy/suggest.h"

#include <algorithm>

namespace adverb::policy {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Optimal string alignment distance: three rows of the usual table.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j)
    above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
          lower(a[i - 2]) == lower(b[j - 1]))
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

// "warning" for "warn", "relax" for "relaxed": too far apart to be a slip, but plainly meant.
bool one_begins_the_other(std::string_view a, std::string_view b) {
  constexpr size_t telling = 3;
  const size_t shared = std::min(a.size(), b.size());
  return shared >= telling && distance(a.substr(0, shared), b.substr(0, shared)) == 0;
}

} // namespace

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
  // Longer words than any candidate could be near to would only cost time.
  if (word.empty() || word.size() > 64)
    return {};
  const size_t tolerated = std::max<size_t>(1, word.size() / 3);
  std::string_view best;
  size_t best_distance = tolerated + 1;
  for (std::string_view candidate : candidates) {
    const size_t d = distance(word, candidate);
    if (d < best_distance) {
      best = candidate;
      best_distance = d;
    }
  }
  if (!best.empty())
    return best;
  const auto begun = std::ranges::find_if(candidates, [&](std::string_view candidate) {
    return one_begins_the_other(word, candidate);
  });
  return begun != candidates.end() ? *begun : std::string_view();
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates,
                         std::string_view intro) {
  if (std::string_view best = nearest(word, candidates); !best.empty())
    return "did you mean " + in_quotes(best) + "?";
  return std::string(intro) + " " + quoted_list(candidates, "and");
}

std::string quoted_list(std::span<const std::string_view> words, std::string_view last) {
  std::string list;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0)
      list += i + 1 == words.size() ? " " + std::string(last) + " " : ", ";
    list += in_quotes(words[i]);
  }
  return list;
}

std::string in_quotes(std::string_view text) {
  static constexpr char hex[] = "0123456789abcdef";
  std::string result = "\"";
  size_t used = 0;
  for (char c : text) {
    // Cut only where a new UTF-8 character starts.
    if (used++ >= 60 && (static_cast<unsigned char>(c) & 0xc0) != 0x80) {
      result += "…";
      break;
    }
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      result += "\\u00";
      result += hex[byte >> 4];
      result += hex[byte & 15];
    } else {
      result += c;
    }
  }
  return result + '"';
}

} // namespace adverb::policy
