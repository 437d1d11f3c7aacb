// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "tools/library.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <unistd.h>

namespace adverb::tools {
namespace {

constexpr const char* separators = " :"; // of LD_PRELOAD, which has no way to quote them

std::string own_directory() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  const std::string own(path, length > 0 ? static_cast<size_t>(length) : 0);
  return own.substr(0, own.rfind('/'));
}

} // namespace

std::optional<std::string> find_library(std::string& reason) {
  const std::string here = own_directory();
  const std::string candidates[] = {
      here + "/../libadverb.so",                   // build tree: preload/tools/adverb
      here + "/../" ADVERB_LIBDIR "/libadverb.so", // PREFIX/bin/adverb
      here + "/../" ADVERB_LIBDIR "/adverb/libadverb.so",
  };
  for (const std::string& candidate : candidates) {
    char path[PATH_MAX];
    if (realpath(candidate.c_str(), path) == nullptr || access(path, R_OK) != 0)
      continue;
    std::string found = path;
    if (found.find_first_of(separators) == found.npos)
      return found;
    reason = found + " cannot be preloaded: LD_PRELOAD allows no space or colon in a path";
    return std::nullopt;
  }
  reason = "libadverb.so is neither in " + here + "/.. nor in " + here + "/../" ADVERB_LIBDIR;
  return std::nullopt;
}

std::string preload_with(const std::string& library) {
  const char* value = getenv("LD_PRELOAD");
  const std::string present = value != nullptr ? value : "";
  for (size_t start = 0; start < present.size();) {
    const size_t stop = std::min(present.find_first_of(separators, start), present.size());
    if (present.substr(start, stop - start) == library)
      return present;
    start = stop + 1;
  }
  return present.empty() ? library : present + ":" + library;
}

} // namespace adverb::tools
