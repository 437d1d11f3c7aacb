// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "awaited.h"

#include <fnmatch.h>

#include <fstream>

namespace verify {

bool Awaited::read(const char* path) {
  std::ifstream file(path);
  const std::string bar = " | ";
  for (std::string line; std::getline(file, line);) {
    const size_t step = line.find(bar);
    const size_t text = step == std::string::npos ? step : line.find(bar, step + bar.size());
    if (line.empty() || line[0] == '#')
      continue;
    if (text == std::string::npos)
      return false;
    lines_.push_back({line.substr(0, step),
                      line.substr(step + bar.size(), text - step - bar.size()),
                      line.substr(text + bar.size())});
  }
  return given();
}

const char* Awaited::at(const std::string& test, const std::string& step,
                        const std::string& subject, size_t nth) const {
  const Line* found = nullptr;
  size_t seen = 0;
  for (const Line& line : lines_) {
    if (line.step != step || line.text.compare(0, subject.size(), subject) != 0 ||
        (found ? found->test != line.test : fnmatch(line.test.c_str(), test.c_str(), 0) != 0))
      continue;
    found = &line;
    if (seen++ == nth)
      break;
  }
  return found ? found->text.c_str() + subject.size() : nullptr;
}

} // namespace verify
