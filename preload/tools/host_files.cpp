// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "tools/host_files.h"

#include <algorithm>
#include <climits>
#include <dirent.h>
#include <fstream>
#include <iterator>
#include <unistd.h>

namespace adverb::tools {

bool HostFiles::exists(const std::string& path) const {
  return access(at(path).c_str(), F_OK) == 0;
}

std::string HostFiles::first_line(const std::string& path) const {
  std::ifstream in(at(path));
  std::string line;
  std::getline(in, line);
  return line;
}

std::string HostFiles::content(const std::string& path) const {
  std::ifstream in(at(path), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> HostFiles::names(const std::string& folder) const {
  std::vector<std::string> out;
  if (DIR* list = opendir(at(folder).c_str())) {
    while (const dirent* entry = readdir(list))
      if (entry->d_name[0] != '.')
        out.emplace_back(entry->d_name);
    closedir(list);
  }
  std::ranges::sort(out);
  return out;
}

std::string HostFiles::link_name(const std::string& path) const {
  char target[PATH_MAX];
  const ssize_t size = readlink(at(path).c_str(), target, sizeof target);
  if (size <= 0)
    return {};
  const std::string text(target, static_cast<size_t>(size));
  return text.substr(text.rfind('/') + 1);
}

} // namespace adverb::tools
