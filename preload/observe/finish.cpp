// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The end of a process: its statistics go to $ADVERB_STATS_FILE, its page goes away.
#include "observe/output_file.h"
#include "observe/page.h"
#include "observe/pattern.h"
#include "observe/snapshot.h"
#include "observe/trace_log.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace adverb::observe {

namespace {

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
  const int fd = special ? open_to_append(target) : create_anew(target);
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

} // namespace

void SharedPage::write_statistics() {
  const char* pattern = secure_getenv("ADVERB_STATS_FILE");
  if (pattern == nullptr || *pattern == '\0')
    return;
  const std::string path = expand_pattern(pattern);
  const TraceLog trace = trace_of(header(), trace_.ring());
  const Snapshot snapshot = snapshot_of(header(), counters_.tally(), peers_.slots());
  if (!write_file(path, to_json(snapshot, trace) + "\n"))
    log_.warn("cannot write the statistics to {}: {}", path, std::strerror(errno));
}

void SharedPage::finish(void (*before)() noexcept) noexcept {
  if (!started())
    return;
  const int saved = errno;
  try {
    // By the system clock: the tools that look for races do not know the wait by the steady one.
    const std::unique_lock lock(finishing_,
                                std::chrono::system_clock::now() + std::chrono::seconds(2));
    if (lock.owns_lock() && !finished_) {
      finished_ = true;
      if (before != nullptr)
        before();
      counters_.gather();
      write_statistics();
      unlink_file();
    }
  } catch (...) {
    unlink_file();
  }
  errno = saved;
}

} // namespace adverb::observe
