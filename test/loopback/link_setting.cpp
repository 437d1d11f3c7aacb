// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The grammar of ADVERB_LOOPBACK_LINK.
#include "link.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

namespace adverb::loopback {

namespace {

// A reason against a word; empty if the word is right.
using Reason = std::string_view;

constexpr double kLongestNs = 3600e9;

// A number that begins with a digit and leaves `rest` behind it.
bool take_number(std::string_view text, double& value, std::string_view& rest) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) == 0)
    return false;
  const std::string copy(text);
  char* end = nullptr;
  value = strtod(copy.c_str(), &end);
  rest = text.substr(static_cast<size_t>(end - copy.c_str()));
  return std::isfinite(value);
}

Reason read_probability(std::string_view text, double& value) {
  std::string_view rest;
  if (!take_number(text, value, rest) || !rest.empty() || value > 1)
    return "a probability is a number from 0 to 1";
  return {};
}

Reason read_count(std::string_view text, uint64_t& value) {
  constexpr size_t kMostDigits = 18;
  if (text.empty() || text.size() > kMostDigits ||
      text.find_first_not_of("0123456789") != std::string_view::npos)
    return "a whole number of at most 18 digits is needed";
  value = strtoull(std::string(text).c_str(), nullptr, 10);
  return {};
}

Reason read_time(std::string_view text, uint64_t& value) {
  constexpr std::array<std::pair<std::string_view, double>, 4> kUnits = {
      {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}};
  double number = 0;
  std::string_view unit;
  if (take_number(text, number, unit))
    for (const auto& [name, scale] : kUnits)
      if (unit == name && number * scale <= kLongestNs) {
        value = static_cast<uint64_t>(number * scale);
        return {};
      }
  return "a time is a number with ns, us, ms or s, up to an hour";
}

Reason read_burst(std::string_view text, double& value) {
  std::string_view rest;
  if (!take_number(text, value, rest) || !rest.empty() || value < 1)
    return "a mean burst length is a number of packets, 1 or more";
  return {};
}

// P:N or P:N:TIME
Reason read_reorder(std::string_view text, LinkSetting& setting) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos)
    return "reorder is P:N, a probability and a number of packets";
  if (const Reason reason = read_probability(text.substr(0, colon), setting.reorder);
      !reason.empty())
    return reason;
  const std::string_view rest = text.substr(colon + 1);
  const size_t second = rest.find(':');
  if (const Reason reason = read_count(rest.substr(0, second), setting.reorder_span);
      !reason.empty())
    return reason;
  if (setting.reorder_span == 0)
    return "at least one packet has to overtake";
  return second == std::string_view::npos
             ? Reason()
             : read_time(rest.substr(second + 1), setting.reorder_wait_ns);
}

Reason read_late(std::string_view text, LinkSetting& setting) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos)
    return "late is P:TIME, a probability and a time";
  const Reason reason = read_probability(text.substr(0, colon), setting.late);
  return reason.empty() ? read_time(text.substr(colon + 1), setting.late_ns) : reason;
}

Reason read_unbacked(std::string_view text, bool& place) {
  place = text == "place";
  return place || text == "drop" ? Reason() : "unbacked is drop or place";
}

Reason read_word(std::string_view word, LinkSetting& setting) {
  const size_t equals = word.find('=');
  if (equals == std::string_view::npos)
    return "a word is name=value";
  const std::string_view name = word.substr(0, equals);
  const std::string_view value = word.substr(equals + 1);
  if (name == "seed")
    return read_count(value, setting.seed);
  if (name == "loss")
    return read_probability(value, setting.loss);
  if (name == "burst")
    return read_burst(value, setting.burst);
  if (name == "duplicate")
    return read_probability(value, setting.duplicate);
  if (name == "reorder")
    return read_reorder(value, setting);
  if (name == "late")
    return read_late(value, setting);
  if (name == "delay")
    return read_time(value, setting.delay_ns);
  if (name == "unbacked")
    return read_unbacked(value, setting.place_unbacked);
  return "the names are seed, loss, burst, duplicate, reorder, late, delay and unbacked";
}

} // namespace

bool parse_link(std::string_view text, LinkSetting& setting, std::string& complaint) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view word = text.substr(begin, comma - begin);
    if (const Reason reason = read_word(word, setting); !reason.empty()) {
      complaint = "'" + std::string(word) + "': " + std::string(reason);
      return false;
    }
    begin = comma + 1;
  }
  if (setting.burst != 0 && setting.loss / setting.burst > 1 - setting.loss) {
    complaint = "'burst': bursts this short cannot lose so many packets";
    return false;
  }
  return true;
}

} // namespace adverb::loopback
