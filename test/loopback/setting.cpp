// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "setting.h"

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace adverb::loopback {

bool take_number(std::string_view text, double& value, std::string_view& rest) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) == 0)
    return false;
  const std::string copy(text);
  char* end = nullptr;
  value = strtod(copy.c_str(), &end);
  rest = text.substr(static_cast<size_t>(end - copy.c_str()));
  return std::isfinite(value);
}

Reason read_count(std::string_view text, uint64_t& value) {
  constexpr size_t kMostDigits = 18;
  if (text.empty() || text.size() > kMostDigits ||
      text.find_first_not_of("0123456789") != std::string_view::npos)
    return "a whole number of at most 18 digits is needed";
  value = strtoull(std::string(text).c_str(), nullptr, 10);
  return {};
}

Reason read_time(std::string_view text, uint64_t& ns) {
  constexpr double kLongestNs = 3600e9;
  constexpr std::array<std::pair<std::string_view, double>, 4> kUnits = {
      {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}};
  double number = 0;
  std::string_view unit;
  if (take_number(text, number, unit))
    for (const auto& [name, scale] : kUnits)
      if (unit == name && number * scale <= kLongestNs) {
        ns = static_cast<uint64_t>(number * scale);
        return {};
      }
  return "a time is a number with ns, us, ms or s, up to an hour";
}

} // namespace adverb::loopback
