// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "observe/output_file.h"

#include <cerrno>
#include <fcntl.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

namespace adverb::observe {
namespace {

// The only ones by which a link has to be followed.
bool is_of_system(std::string_view path) {
  if (path == "/dev/stdout" || path == "/dev/stderr")
    return true;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"})
    if (path.starts_with(folder))
      return path.find_first_not_of("0123456789", folder.size()) == path.npos;
  return false;
}

// errno value; 0: it may be written to.
int distrust(const struct stat& file) {
  if (S_ISCHR(file.st_mode)) // a terminal that is another user's under su(1), /dev/null
    return 0;
  if (file.st_uid != geteuid() && file.st_uid != 0)
    return EPERM;
  if (S_ISBLK(file.st_mode))
    return EPERM;
  return file.st_nlink > 1 ? EMLINK : 0;
}

} // namespace

int open_to_append(const std::string& path) {
  // Where the kernel's fs.protected_* are off, nothing else keeps a link of another user's from
  // being followed, or a FIFO of his from holding the program up.
  const int links = is_of_system(path) ? 0 : O_NOFOLLOW;
  const int fd =
      open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | links,
           0600);
  if (fd < 0)
    return -1;
  struct stat now{};
  const int why = fstat(fd, &now) != 0 ? errno : distrust(now);
  if (why != 0) {
    close(fd);
    errno = why;
    return -1;
  }
  return fd;
}

int create_anew(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT)
    return -1;
  return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
}

} // namespace adverb::observe
