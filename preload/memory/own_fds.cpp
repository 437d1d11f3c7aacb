// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/own_fds.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __SANITIZE_THREAD__
// As in sanitizer/linux_syscall_hooks.h, which gcc has not.
extern "C" void __sanitizer_syscall_pre_impl_close(long fd);
#endif

namespace adverb::own_fds {
namespace {

constexpr size_t word_bits = 64;
constinit std::array<std::atomic<uint64_t>, known_max / word_bits> owned{};
// Whose numbers these are. A child of vfork(2), _Fork(3) or clone(2) has the same memory, or a
// copy, and a table of its own, where the same numbers are its to close. With CLONE_FILES the table
// is the parent's, too, and so are the numbers.
constinit std::atomic<pid_t> owner{0};

// Where adverb's begin: high in a small table of descriptors, and low enough to need no larger one.
constexpr rlim_t first_high = 512;

std::atomic<uint64_t>& word_of(size_t fd) noexcept {
  return owned[fd / word_bits];
}

uint64_t bit_of(size_t fd) noexcept {
  return uint64_t{1} << (fd % word_bits);
}

// kcmp(2) is asked in children alone. Where it may not be called the table counts as the child's.
bool are_ours() noexcept {
  const pid_t whose = owner.load(std::memory_order_relaxed);
  const pid_t here = getpid();
  if (whose == here || whose == 0)
    return whose == here;
  const int saved = errno;
  const bool shared = syscall(SYS_kcmp, whose, here, KCMP_FILES, 0, 0) == 0;
  errno = saved;
  return shared;
}

// Past the hook, which would refuse. ThreadSanitizer does not see system calls, and would take the
// next use of the number for one of this descriptor.
void close_really(size_t fd) noexcept {
#ifdef __SANITIZE_THREAD__
  __sanitizer_syscall_pre_impl_close(static_cast<long>(fd));
#endif
  syscall(SYS_close, static_cast<int>(fd));
}

} // namespace

void add(int fd) noexcept {
  if (const auto at = static_cast<size_t>(fd); fd >= 0 && at < known_max) {
    if (!are_ours())
      owner.store(getpid(), std::memory_order_relaxed);
    word_of(at).fetch_or(bit_of(at));
  }
}

void remove(int fd) noexcept {
  if (const auto at = static_cast<size_t>(fd); fd >= 0 && at < known_max)
    word_of(at).fetch_and(~bit_of(at));
}

bool has(int fd) noexcept {
  const auto at = static_cast<size_t>(fd);
  return fd >= 0 && at < known_max &&
         (word_of(at).load(std::memory_order_relaxed) & bit_of(at)) != 0 && are_ours();
}

size_t next_from(size_t fd) noexcept {
  for (size_t at = fd; at < known_max; at = (at / word_bits + 1) * word_bits) {
    const uint64_t left = word_of(at).load(std::memory_order_relaxed) & ~(bit_of(at) - 1);
    if (left != 0 && are_ours())
      return at / word_bits * word_bits + static_cast<size_t>(std::countr_zero(left));
  }
  return known_max;
}

void shut(int fd) noexcept {
  remove(fd); // before the number can come back
  if (fd >= 0)
    close_really(static_cast<size_t>(fd));
}

void close_all() noexcept {
  for (size_t word = 0; word < owned.size(); ++word)
    for (uint64_t bits = owned[word].exchange(0); bits != 0; bits &= bits - 1)
      close_really(word * word_bits + static_cast<size_t>(std::countr_zero(bits)));
}

int raised(int fd) noexcept {
  if (fd < 0)
    return fd;
  const int saved = errno;
  rlimit limit{};
  const bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0;
  const rlim_t from = known ? std::min<rlim_t>(first_high, limit.rlim_cur / 2) : first_high;
  errno = saved;
  if (static_cast<rlim_t>(fd) >= from)
    return fd;
  const int high = fcntl(fd, F_DUPFD_CLOEXEC, static_cast<int>(from));
  errno = saved;
  if (high < 0)
    return fd;
  close_really(static_cast<size_t>(fd));
  return high;
}

} // namespace adverb::own_fds
