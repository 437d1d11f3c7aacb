// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The end of a process: its statistics go to $ADVERB_STATS_FILE, its page goes away.
//
// The right moment is after the program's own exit handlers, which may still use verbs. So the
// handlers here are registered by a constructor: the library's come first and therefore run last.
//
// There are several of them because several threads may call exit() at once. Before glibc 2.41 the
// second of them finds the list of handlers empty while the first is still inside one, and ends
// the process under it; with enough handlers each thread has to pass one, which lets it go when
// the file is complete. Registered this early they lie in libc's static block of 32: a handler
// that waits while it lies in a later, allocated block is freed by the other threads meanwhile.
#include "observe/lifecycle.h"
#include "observe/log.h"
#include "observe/page.h"
#include "observe/pattern.h"
#include "observe/snapshot.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <new>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace adverb::observe {

namespace {

// Threads that may call exit() at the same moment and still leave a complete file.
constexpr int kHandlers = 8;

/// Timed, so that an exit() from a signal handler inside finish() cannot hang the program.
union Lock {
  constexpr Lock() : mutex() {}
  ~Lock() {}
  std::timed_mutex mutex;
};
constinit Lock g_lock;
bool g_finished = false; // under g_lock
std::atomic<void (*)() noexcept> g_before{nullptr};

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

/// Readers never see half a file: written beside its place and renamed. A pipe or device is
/// written to as it is.
bool write_file(const std::string& path, std::string_view text) {
  struct stat now;
  const bool special = stat(path.c_str(), &now) == 0 && !S_ISREG(now.st_mode);
  const std::string target = special ? path : path + ".tmp." + std::to_string(getpid());
  const int how = special ? O_APPEND | O_NONBLOCK | O_NOCTTY : O_CREAT | O_TRUNC | O_NOFOLLOW;
  const int fd = open(target.c_str(), O_WRONLY | O_CLOEXEC | how, 0644);
  if (fd < 0)
    return false;
  const bool written = write_all(fd, text);
  const int error = errno;
  close(fd);
  errno = error;
  if (special)
    return written;
  if (written && rename(target.c_str(), path.c_str()) == 0)
    return true;
  const int why = errno;
  unlink(target.c_str());
  errno = why;
  return false;
}

void write_statistics() {
  const char* pattern = secure_getenv("ADVERB_STATS_FILE");
  if (pattern == nullptr || *pattern == '\0')
    return;
  const std::string path = expand_pattern(pattern);
  if (!write_file(path, to_json(own_snapshot()) + "\n"))
    log_warn("cannot write the statistics to {}: {}", path, std::strerror(errno));
}

__attribute__((constructor(101))) void register_handlers() {
  for (int i = 0; i < kHandlers; ++i)
    atexit(finish);
  at_quick_exit(finish);
}

} // namespace

namespace detail {

void exit_forget() noexcept {
  new (&g_lock.mutex) std::timed_mutex;
  g_finished = false;
}

} // namespace detail

void before_finish(void (*what)() noexcept) noexcept {
  g_before.store(what);
}

void finish() noexcept {
  if (!detail::started())
    return;
  const int saved = errno;
  try {
    // By the system clock: the tools that look for races do not know the wait by the steady one.
    const std::unique_lock lock(g_lock.mutex,
                                std::chrono::system_clock::now() + std::chrono::seconds(2));
    if (lock.owns_lock() && !g_finished) {
      g_finished = true;
      if (const auto before = g_before.load())
        before();
      detail::gather_late_counts();
      write_statistics();
      detail::unlink_page();
    }
  } catch (...) {
    detail::unlink_page();
  }
  errno = saved;
}

} // namespace adverb::observe
