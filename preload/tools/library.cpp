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

std::string preload_with(const std::string& library, const std::string& first) {
  const char* value = getenv("LD_PRELOAD");
  const std::string present = value != nullptr ? value : "";
  const auto last_part = [](const std::string& path) { return path.substr(path.rfind('/') + 1); };
  std::string all = first;
  const auto add = [&](const std::string& path) { all += (all.empty() ? "" : ":") + path; };
  bool has_library = false;
  for (size_t start = 0; start < present.size();) {
    const size_t stop = std::min(present.find_first_of(separators, start), present.size());
    const std::string path = present.substr(start, stop - start);
    has_library |= path == library;
    // The loader takes a name of a second time for the first.
    if (!path.empty() && (first.empty() || last_part(path) != last_part(first)))
      add(path);
    start = stop + 1;
  }
  if (!has_library)
    add(library);
  return all;
}

} // namespace adverb::tools
