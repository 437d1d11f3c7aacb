// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

#include "catch.h"

#include <cstddef>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <span>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace adverb::test {

// A page that is away until come(): who touches it before that sleeps. False where userfaultfd is
// not permitted.
class SlowPage {
public:
  SlowPage()
      : fd_(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK))),
        start_(
            mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
        at_(static_cast<std::byte*>(start_) + bytes) {
    uffdio_api api{UFFD_API, 0, 0};
    uffdio_register wanted{
        {reinterpret_cast<uintptr_t>(at_), bytes}, UFFDIO_REGISTER_MODE_MISSING, 0};
    good_ =
        fd_ >= 0 && ioctl(fd_, UFFDIO_API, &api) == 0 && ioctl(fd_, UFFDIO_REGISTER, &wanted) == 0;
  }
  ~SlowPage() {
    munmap(start_, 2 * bytes);
    close(fd_);
  }
  SlowPage(const SlowPage&) = delete;
  SlowPage& operator=(const SlowPage&) = delete;
  explicit operator bool() const { return good_; }
  std::span<std::byte> memory() const { return {at_, bytes}; }
  // Behind an ordinary one.
  std::span<std::byte> both() const { return {at_ - bytes, 2 * bytes}; }
  // Somebody touches it, and sleeps; false after two minutes without.
  bool is_touched() const {
    pollfd about{fd_, POLLIN, 0};
    return poll(&about, 1, 120'000) == 1 && about.revents == POLLIN;
  }
  // Until somebody does.
  void await() const {
    uffd_msg message{};
    REQUIRE(is_touched());
    REQUIRE(read(fd_, &message, sizeof message) == sizeof message);
  }
  void come() const {
    uffdio_zeropage zero{{reinterpret_cast<uintptr_t>(at_), bytes}, 0, 0};
    REQUIRE(ioctl(fd_, UFFDIO_ZEROPAGE, &zero) == 0);
  }

private:
  static constexpr size_t bytes = 4096;
  int fd_;
  void* start_;
  std::byte* at_;
  bool good_;
};

} // namespace adverb::test
