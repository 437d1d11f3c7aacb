// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/page_of.h"
#include "observe/directory.h"

#include <charconv>
#include <cstring>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace adverb::tools {

std::string why_no_page(pid_t pid) {
  const std::string proc = "/proc/" + std::to_string(pid);
  struct stat owner{};
  if (stat(proc.c_str(), &owner) != 0)
    return "there is no such process (a program that exits normally takes its numbers with it; set "
           "ADVERB_STATS_FILE to keep them)";
  if (geteuid() != 0 && owner.st_uid != geteuid())
    return fmt::format("it belongs to user {}; ask as that user or as root", owner.st_uid);
  std::ifstream maps(proc + "/maps");
  bool readable = false, mapped = false;
  for (std::string line; std::getline(maps, line);) {
    readable = true;
    mapped = mapped || line.find("/libadverb.so") != std::string::npos;
  }
  if (readable && !mapped)
    return "it runs without libadverb.so; start it with `adverb run`";
  std::string looked;
  for (const std::string& directory : observe::search_directories(geteuid()))
    looked += (looked.empty() ? "" : ", ") + directory;
  return fmt::format("it has not used an RDMA device yet, or keeps its page elsewhere than in {} "
                     "(its XDG_RUNTIME_DIR differs)",
                     looked);
}

bool parse_pid(const char* text, pid_t& pid) {
  const char* end = text + strlen(text);
  const auto [rest, error] = std::from_chars(text, end, pid);
  return error == std::errc() && rest == end && pid > 0;
}

} // namespace adverb::tools
