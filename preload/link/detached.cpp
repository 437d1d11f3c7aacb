// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/detached.h"
#include "memory/own.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <fcntl.h>
#include <linux/sched.h>
#include <new>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// What runs in a process that shares this one's memory is plain code: no tool's, and system calls
// past every hook.
#define PLAIN __attribute__((no_sanitize("address", "undefined")))

namespace adverb::link {

#if defined(__SANITIZE_THREAD__)

int start_detached(const std::string&, const std::vector<std::string>&,
                   std::span<const int>) noexcept {
  return ENOSYS; // its runtime knows no process that shares memory
}

#else

namespace {

constexpr size_t stack_bytes = 64 * 1024;
constexpr size_t sockets_most = 8;
constexpr int first_socket = 3;
constexpr int far_away = 64; // a descriptor that none of ours is

struct Start {
  const char* path;
  char* const* words;
  std::array<char*, 3> variables;
  std::array<char, 32> pid; // LISTEN_PID=...
  std::array<int, sockets_most> sockets;
  int count;
  std::byte* stack; // of the second process
  int error;
};

PLAIN void append(char*& to, const char* text) {
  while (*text != '\0')
    *to++ = *text++;
}

PLAIN void append(char*& to, unsigned long number) {
  unsigned long scale = 1;
  while (number / scale >= 10)
    scale *= 10;
  for (; scale != 0; scale /= 10)
    *to++ = static_cast<char>('0' + number / scale % 10);
}

// The kernel's, as rt_sigaction(2) takes it.
struct Disposition {
  void* handler;
  unsigned long flags;
  void* restorer;
  uint64_t mask;
};

// In the process that becomes the program.
PLAIN int become(void* given) {
  Start& start = *static_cast<Start*>(given);
  syscall(SYS_setsid);
  // Before any signal can come: a handler would run in the memory of the process that started this.
  const Disposition usual{};
  for (int signal = 1; signal <= 64; ++signal)
    syscall(SYS_rt_sigaction, signal, &usual, nullptr, sizeof usual.mask);
  for (int i = 0; i < start.count; ++i) {
    const long away = syscall(SYS_fcntl, start.sockets[static_cast<size_t>(i)], F_DUPFD, far_away);
    if (away < 0) {
      start.error = errno;
      syscall(SYS_exit_group, 1);
    }
    start.sockets[static_cast<size_t>(i)] = static_cast<int>(away);
  }
  const long null = syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR, 0);
  for (int fd = 0; fd < first_socket; ++fd) {
    if (null >= 0 && null != fd)
      syscall(SYS_dup3, null, fd, 0);
  }
  for (int i = 0; i < start.count; ++i)
    syscall(SYS_dup3, start.sockets[static_cast<size_t>(i)], first_socket + i, 0);
  const auto rest = static_cast<unsigned>(first_socket + start.count);
  if (syscall(SYS_close_range, rest, ~0U, 0) != 0)
    for (unsigned fd = rest; fd < 4096; ++fd) // a filter of system calls forbids the other
      syscall(SYS_close, fd);
  syscall(SYS_chdir, "/");
  const sched_param usual_priority{};
  syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &usual_priority);
  std::array<uint64_t, 128> everywhere;
  for (uint64_t& word : everywhere)
    word = ~uint64_t{0};
  syscall(SYS_sched_setaffinity, 0, sizeof everywhere, everywhere.data());
  char* at = start.pid.data();
  append(at, "LISTEN_PID=");
  append(at, static_cast<unsigned long>(syscall(SYS_getpid)));
  *at = '\0';
  const uint64_t none = 0;
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, sizeof none);
  syscall(SYS_execve, start.path, start.words, start.variables.data());
  start.error = errno;
  syscall(SYS_exit_group, 1);
  return 1;
}

// In a process between the two, whose end leaves that one nobody's child. It is waited for by its
// maker alone, as it sends no signal at its end (__WCLONE); the other could not be kept so, since
// execve(2) makes it a child like others.
PLAIN int stand_between(void* given) {
  Start& start = *static_cast<Start*>(given);
  if (clone(become, start.stack + stack_bytes, CLONE_VM | CLONE_VFORK | SIGCHLD, &start) < 0)
    start.error = errno;
  syscall(SYS_exit_group, 0);
  return 0;
}

PLAIN int run(Start& start, std::byte* stack) {
  const uint64_t all = ~uint64_t{0};
  uint64_t before = 0;
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
  const int pid = clone(stand_between, stack + stack_bytes, CLONE_VM | CLONE_VFORK, &start);
  if (pid < 0)
    start.error = errno;
  while (pid > 0 && syscall(SYS_wait4, pid, nullptr, __WCLONE, nullptr) < 0 && errno == EINTR) {
  }
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof before);
  return start.error;
}

} // namespace

int start_detached(const std::string& path, const std::vector<std::string>& words,
                   std::span<const int> sockets) noexcept {
  if (sockets.size() > sockets_most)
    return EINVAL;
  const int saved = errno;
  int rc = ENOMEM;
  try {
    std::vector<char*> all{const_cast<char*>(path.c_str())};
    for (const std::string& word : words)
      all.push_back(const_cast<char*>(word.c_str()));
    all.push_back(nullptr);
    std::string count = "LISTEN_FDS=" + std::to_string(sockets.size());
    void* const stacks = memory::map_own(2 * stack_bytes, PROT_READ | PROT_WRITE);
    if (stacks != MAP_FAILED) {
      auto* const stack = static_cast<std::byte*>(stacks);
      Start start{};
      start.path = path.c_str();
      start.words = all.data();
      start.variables = {start.pid.data(), count.data(), nullptr};
      for (const int socket : sockets)
        start.sockets[static_cast<size_t>(start.count++)] = socket;
      start.stack = stack + stack_bytes;
      rc = run(start, stack);
      munmap(stacks, 2 * stack_bytes);
    }
  } catch (const std::bad_alloc&) {
    rc = ENOMEM;
  }
  errno = saved;
  return rc;
}

#endif

} // namespace adverb::link
