// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "tools/needed.h"

#include "tools/executable.h"

#include <cerrno>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace adverb::tools {
namespace {

// Standard output of `loader --list path`, or an empty text if that failed.
std::string list(const std::string& loader, const std::string& path) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0)
    return {};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const std::string words[] = {loader, "--list", path};
  char* argv[] = {const_cast<char*>(words[0].c_str()), const_cast<char*>(words[1].c_str()),
                  const_cast<char*>(words[2].c_str()), nullptr};
  pid_t child = -1;
  const int error = posix_spawn(&child, loader.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  std::string output;
  char buffer[4096];
  ssize_t count = 0;
  while (error == 0 && ((count = read(pipe_ends[0], buffer, sizeof(buffer))) > 0 ||
                        (count < 0 && errno == EINTR)))
    if (count > 0)
      output.append(buffer, static_cast<size_t>(count));
  close(pipe_ends[0]);
  int status = 0;
  if (error != 0)
    return {};
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? output : std::string();
}

// The path behind `name` in a line such as "\tlibasan.so.8 => /usr/lib/libasan.so.8 (0x7f...)".
std::string path_of(const std::string& listing, const std::string& name) {
  const size_t line = listing.find("\t" + name);
  const std::string arrow = " => ";
  const size_t at = listing.find(arrow, line);
  if (line == listing.npos || at == listing.npos || listing.find('\n', line) < at)
    return {};
  const size_t from = at + arrow.size();
  return listing.substr(from, listing.find(" (", from) - from);
}

} // namespace

Needed needed_by(const std::string& path) {
  const std::string listing = list(own_loader(), path);
  const auto holds = [&](const char* name) { return listing.find(name) != listing.npos; };
  Needed result;
  result.known = !listing.empty();
  result.verbs = holds("\tlibibverbs.so") || holds("\tlibrdmacm.so");
  result.direct_verbs = holds("\tlibmlx5.so") || holds("\tlibmlx4.so") || holds("\tlibefa.so");
  for (const char* runtime : {"libasan.so", "libtsan.so", "liblsan.so", "libhwasan.so",
                              "libclang_rt.asan", "libclang_rt.tsan", "libclang_rt.hwasan"})
    if (result.sanitizer.empty())
      result.sanitizer = path_of(listing, runtime);
  return result;
}

} // namespace adverb::tools
