// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/text.h"

#include <cstring>
#include <iterator>

#include <fmt/format.h>

namespace adverb::tools {

std::string amount(int64_t value, const char* unit) {
  if (strcmp(unit, "bytes") != 0)
    return fmt::format("{} {}", value, unit);
  constexpr const char* names[] = {"B  ", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double scaled = static_cast<double>(value);
  size_t step = 0;
  while ((scaled >= 1024 || scaled <= -1024) && step + 1 < std::size(names)) {
    scaled /= 1024;
    ++step;
  }
  return step == 0 ? fmt::format("{} bytes", value) : fmt::format("{:.1f} {}", scaled, names[step]);
}

std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) >= 0x7f)
      c = '?';
  return text;
}

} // namespace adverb::tools
