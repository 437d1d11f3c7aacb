// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "tools/program.h"

#include "tools/commands.h"
#include "tools/executable.h"
#include "tools/needed.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

namespace adverb::tools {
namespace {

constexpr unsigned most_interpreters = 5; // scripts of scripts, as the kernel allows

std::string last_part(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

// The file that `name` means, and whether it may be executed: 0, EACCES, ENOENT…
int search(const std::string& name, std::string& found) {
  const auto usable = [](const std::string& path) {
    struct stat status{};
    if (stat(path.c_str(), &status) != 0)
      return errno;
    if (S_ISDIR(status.st_mode))
      return EISDIR;
    return access(path.c_str(), X_OK) == 0 ? 0 : errno;
  };
  found = name;
  if (name.find('/') != name.npos)
    return usable(name);
  const char* variable = getenv("PATH");
  const std::string list = variable != nullptr ? variable : "/bin:/usr/bin";
  int result = ENOENT;
  for (size_t start = 0; start <= list.size();) {
    const size_t stop = std::min(list.find(':', start), list.size());
    const std::string directory = list.substr(start, stop - start);
    const std::string path = (directory.empty() ? "." : directory) + "/" + name;
    const int error = name.empty() ? ENOENT : usable(path);
    if (error == 0) {
      found = path;
      return 0;
    }
    if (error == EACCES) {
      found = path;
      result = EACCES;
    }
    start = stop + 1;
  }
  return result;
}

std::string resolved(const std::string& path) {
  char buffer[PATH_MAX];
  return realpath(path.c_str(), buffer) != nullptr ? std::string(buffer) : path;
}

// Why the kernel would start the file in secure mode, in which the loader ignores LD_PRELOAD.
std::string gains_privilege(const std::string& path) {
  struct stat status{};
  struct statvfs mount{};
  if (stat(path.c_str(), &status) != 0 || prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
    return {};
  if (statvfs(path.c_str(), &mount) == 0 && (mount.f_flag & ST_NOSUID) != 0)
    return {};
  if ((status.st_mode & S_ISUID) != 0 && status.st_uid != getuid())
    return "it is setuid (to user " + std::to_string(status.st_uid) + ")";
  const mode_t setgid = S_ISGID | S_IXGRP; // without S_IXGRP the bit means something else
  if ((status.st_mode & setgid) == setgid && status.st_gid != getgid())
    return "it is setgid (to group " + std::to_string(status.st_gid) + ")";
  if (getuid() != 0 && getxattr(path.c_str(), "security.capability", nullptr, 0) > 0)
    return "it has file capabilities";
  return {};
}

void refuse(Program& program, std::string reason, std::string remedy = {}) {
  program.status = status_refused;
  program.reason = std::move(reason);
  program.remedy = std::move(remedy);
}

// What has to be true of every file on the way from a script to its interpreter's ELF file.
void check_loader(Program& program, const Executable& executable) {
  switch (executable.kind) {
  case Kind::unreadable:
    program.notes.push_back(program.executable + " cannot be read (" + executable.problem +
                            "), so it was not checked");
    return;
  case Kind::foreign:
    return refuse(program, executable.problem);
  default:
    break;
  }
  if (executable.loader.empty())
    return refuse(program, "it is statically linked, so no library can be preloaded into it",
                  "use a dynamically linked build");
  const std::string own = own_loader();
  if (last_part(executable.loader) != last_part(own))
    return refuse(program, "its loader is " + executable.loader + " and libadverb.so needs " + own,
                  "use a build for the C library that adverb was built for");
}

// From a script to what really runs. `#!/usr/bin/env NAME` is looked through as well.
Executable follow_scripts(Program& program) {
  Executable executable = inspect(program.executable);
  for (unsigned depth = 0; depth < most_interpreters; ++depth) {
    if (executable.kind == Kind::other)
      executable = {Kind::script, "/bin/sh", {}, {}}; // as shells and execvp(3) run it
    if (executable.kind != Kind::script)
      break;
    program.script = true;
    const std::string interpreter = executable.loader;
    std::string next = interpreter;
    if (last_part(interpreter) == "env" && !executable.argument.empty() &&
        executable.argument.find_first_of("-= \t") == executable.argument.npos &&
        search(executable.argument, next) != 0)
      next = interpreter;
    if (const int error = access(next.c_str(), X_OK) == 0 ? 0 : errno; error != 0) {
      refuse(program, "its interpreter " + next + " cannot be run: " + strerror(error));
      break;
    }
    program.executable = resolved(next);
    executable = inspect(program.executable);
  }
  return executable;
}

void add_notes(Program& program) {
  if (program.script) {
    program.notes.push_back("a script: rules match its interpreter " + program.executable +
                            " and the programs it starts");
    return;
  }
  const Needed needed = needed_by(program.executable);
  if (!needed.known)
    return;
  program.sanitizer = needed.sanitizer;
  if (!program.sanitizer.empty())
    program.notes.push_back("built with a sanitizer, whose runtime " + program.sanitizer +
                            " is preloaded first, as it insists");
  if (!needed.verbs)
    program.warnings.push_back(
        last_part(program.path) +
        " does not depend on libibverbs or librdmacm; unless it starts other "
        "programs, libadverb.so may find nothing to intercept (a library "
        "loaded with dlopen is out of its reach)");
  if (needed.direct_verbs)
    program.notes.push_back(last_part(program.path) +
                            " is linked with a provider's own interface (such as mlx5dv); objects "
                            "made through it pass through unchanged");
}

} // namespace

Program find_program(const std::string& name) {
  Program program;
  if (const int error = search(name, program.path); error != 0) {
    program.status = error == ENOENT || error == ENOTDIR ? status_missing : status_refused;
    program.reason = error == ENOENT ? "no such program" : strerror(error);
    return program;
  }
  program.executable = resolved(program.path);
  const Executable executable = follow_scripts(program);
  if (program.status != status_ok)
    return program;
  // The kernel ignores these bits on scripts, but not on their interpreters.
  if (const std::string why = gains_privilege(program.executable); !why.empty())
    refuse(program, why + ", so the loader ignores LD_PRELOAD for it",
           "run it as the user it changes to");
  else
    check_loader(program, executable);
  if (program.status == status_ok)
    add_notes(program);
  return program;
}

} // namespace adverb::tools
