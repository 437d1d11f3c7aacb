// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Questions about the list of backends, whatever it holds.
#include "policy/backends.h"

#include <algorithm>

namespace adverb::policy {

const BackendTraits* find_backend(std::string_view name) noexcept {
  const auto row = std::ranges::find(backends, name, &BackendTraits::name);
  return row == backends.end() ? nullptr : &*row;
}

std::vector<std::string_view> backend_names() {
  std::vector<std::string_view> names;
  for (const BackendTraits& row : backends)
    names.push_back(row.name);
  return names;
}

std::string describe_backends() {
  std::string result = "How regions are registered: ";
  for (const BackendTraits& row : backends) {
    if (&row != &backends.front())
      result += "; ";
    result += std::string(row.name) + " " + std::string(row.words);
  }
  return result + ".";
}

} // namespace adverb::policy
