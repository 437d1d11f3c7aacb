// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/broker_process.h"
#include "link/detached.h"
#include "link/paths.h"
#include "observe/log.h"

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

namespace adverb::link {
namespace {

// Empty: there is no such file. Not on the stack: this may be a thread of the program's that has
// little.
std::string resolved(const char* path) {
  std::string real(PATH_MAX, '\0');
  if (realpath(path, real.data()) == nullptr)
    return {};
  real.resize(strlen(real.data()));
  return real;
}

// In no folder but those that belong to this library's own, as nobody else may have it run
// something.
std::string command() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&start_broker_process), &info) == 0 ||
      info.dli_fname == nullptr)
    return {};
  std::string folder = resolved(info.dli_fname);
  if (folder.empty())
    return {};
  folder.resize(folder.rfind('/'));
  for (const std::string& candidate : {
           folder + "/tools/adverb",                         // build tree
           folder + "/" ADVERB_BINDIR_FROM_LIBDIR "/adverb", // installed
           folder + "/../" ADVERB_BINDIR_FROM_LIBDIR "/adverb",
       }) {
    const std::string path = resolved(candidate.c_str());
    if (!path.empty() && access(path.c_str(), X_OK) == 0)
      return path;
  }
  return {};
}

// It has another working directory.
std::vector<std::string> where_to_log(const observe::Log& log) {
  const std::string level(to_string(log.level()));
  const std::string file = log.file();
  if (file.empty())
    return {"--log-level", level, "--syslog"};
  std::error_code unknown;
  const auto here = std::filesystem::current_path(unknown);
  return {"--log-level", level, "--log", (here / file).string()};
}

} // namespace

int start_broker_process(uint16_t port, const observe::Log& log, int members, int peers) noexcept {
  try {
    const std::string adverb = command();
    if (adverb.empty())
      return ENOENT;
    std::vector<std::string> words{"broker",   "--user", "--port", std::to_string(port),
                                   "--unused", "1"};
    for (std::string& word : where_to_log(log))
      words.push_back(std::move(word));
    return start_detached(adverb, words, std::array{members, peers});
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

} // namespace adverb::link
