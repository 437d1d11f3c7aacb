// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/module_file.h"
#include "memory/own_fds.h"

#include "../../kernel/adverb_uapi.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace adverb::memory {

int open_module(std::string& why) {
  constexpr const char* path = "/dev/adverb";
  const int fd = own_fds::raised(open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (fd < 0) {
    why = errno == ENOENT   ? "adverb.ko is not loaded"
          : errno == EACCES ? "this user may not open /dev/adverb (the group rdma may)"
                            : std::string(path) + ": " + strerror(errno);
    return -1;
  }
  adverb_version version{};
  if (ioctl(fd, ADVERB_IOC_VERSION, &version) != 0) {
    why = std::string(path) + ": " + strerror(errno);
  } else if (version.minimum_library > ADVERB_MODULE_VERSION ||
             version.module < ADVERB_MODULE_VERSION) {
    why = "adverb.ko is of version " + std::to_string(version.module) +
          " and wants a library of version " + std::to_string(version.minimum_library) +
          " at least; this one is of version " + std::to_string(ADVERB_MODULE_VERSION) +
          " and wants a module of the same at least";
  } else {
    return fd;
  }
  close(fd);
  return -1;
}

} // namespace adverb::memory
