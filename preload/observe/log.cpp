// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// spdlog lives in this file only: header-only, synchronous, without its registry. Loggers are
// leaked on purpose: lines may come while the program runs its destructors.
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#define SPDLOG_LEVEL_NAMES {"trace", "debug", "info", "warn", "error", "critical", "off"}

#include "observe/log.h"

#include "observe/output_file.h"
#include "observe/pattern.h"
#include "world/no_cancel.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace adverb::observe {

namespace {

constexpr size_t kLineBytes = 1000;

/// What a descriptor names.
struct FileIdentity {
  bool exists = false;
  dev_t device = 0;
  ino_t inode = 0;
  bool is(const FileIdentity& other) const noexcept {
    return exists && device == other.device && inode == other.inode;
  }
};

FileIdentity identity_of(int fd) noexcept {
  const int saved = errno;
  struct stat now{};
  const bool exists = fd >= 0 && fstat(fd, &now) == 0;
  errno = saved;
  return {exists, now.st_dev, now.st_ino};
}

/// As it was when the library was loaded, before the program could do anything to it.
FileIdentity first_stderr = identity_of(STDERR_FILENO);

/// Writes whole lines with write(2): no stdio buffers that a fork could double, no stdio locks a
/// fork could leave held.
class DescriptorSink final : public spdlog::sinks::base_sink<std::mutex> {
public:
  /// Takes over `fd` unless it is stderr.
  DescriptorSink(int fd, Counters& counters)
      : fd_(fd), counters_(counters),
        identity_(fd == STDERR_FILENO ? first_stderr : identity_of(fd)) {}

protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const NoCancel whole;
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (!still_ours() || !write_line(line.data(), line.size()))
      counters_.count(Counter::log_dropped);
  }
  void flush_() override {}

private:
  /// A program that closes descriptors (daemons do) may by now use the number for a file or socket
  /// of its own: never write a log line into that. Nor is stderr kept open by a descriptor of
  /// adverb's: whoever waits for the end of a pipe would wait for it.
  bool still_ours() const { return identity_of(fd_).is(identity_); }

  /// A closed pipe on stderr must not kill a program that would not have written to it itself.
  bool write_line(const char* data, size_t size) const {
    sigset_t pipe_only, before, pending;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    sigpending(&pending);
    const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    bool written = true;
    while (size > 0) {
      const ssize_t n = ::write(fd_, data, size);
      if (n < 0 && errno == EINTR)
        continue;
      if (n < 0) {
        written = false;
        if (errno == EPIPE && !was_pending) {
          const timespec now{};
          while (sigtimedwait(&pipe_only, nullptr, &now) < 0 && errno == EINTR) {
          }
        }
        break;
      }
      data += n;
      size -= static_cast<size_t>(n);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return written;
  }

  int fd_;
  Counters& counters_;
  const FileIdentity identity_;
};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
  case LogLevel::error:
    return spdlog::level::err;
  case LogLevel::warn:
    return spdlog::level::warn;
  case LogLevel::info:
    return spdlog::level::info;
  case LogLevel::debug:
    return spdlog::level::debug;
  case LogLevel::off:
    break;
  }
  return spdlog::level::off;
}

spdlog::logger* make_logger(int fd, Counters& counters) {
  auto sink = std::make_shared<DescriptorSink>(fd, counters);
  auto* logger = new spdlog::logger("adverb", std::move(sink));
  // Seconds since the epoch in files: local time would take libc's time zone lock, which a fork in
  // another thread may leave held for ever in the child.
  logger->set_pattern(fd == STDERR_FILENO ? "adverb[%P] %l: %v" : "%E.%e adverb[%P] %l: %v");
  logger->set_level(spdlog::level::trace);
  logger->set_error_handler(
      [&counters](const std::string&) { counters.count(Counter::log_dropped); });
  return logger;
}

/// The file's descriptor, above the standard ones; -1 with errno set.
int open_file(const std::string& file) {
  int fd = open_to_append(file);
  if (fd >= 0 && fd <= STDERR_FILENO) {
    // The program runs with a standard descriptor closed; its next open() expects that number.
    const int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(fd);
    fd = moved;
  }
  return fd;
}

const char* why_not_opened(int error) {
  switch (error) {
  case ELOOP:
    return "it is a symbolic link; name the file itself";
  case EPERM:
    return "it belongs to another user; name another file";
  case EMLINK:
    return "it has a second name (hard link); name another file";
  case ENXIO:
    return "it is a FIFO that nobody reads; name a file, or start its reader first";
  default:
    return std::strerror(error);
  }
}

} // namespace

std::string Log::file() const {
  const char* const text = secure_getenv("ADVERB_LOG_FILE");
  return text != nullptr && *text != '\0' ? text : asked_file_;
}

void take_stderr_as_first() noexcept {
  first_stderr = identity_of(STDERR_FILENO);
}

// Not the process's own: that one lives as long as the process.
Log::~Log() {
  delete logger_.load();
}

void Log::open_with(LogLevel level, std::string_view wanted) {
  std::string file(wanted);
  std::string complaint;
  if (const char* text = secure_getenv("ADVERB_LOG"); text != nullptr && *text != '\0') {
    if (!parse_log_level(text, level))
      complaint =
          fmt::format("ADVERB_LOG={}: not a level; use off, error, warn, info or debug", text);
  }
  if (const char* text = secure_getenv("ADVERB_LOG_FILE"); text != nullptr && *text != '\0')
    file = text;

  int fd = STDERR_FILENO;
  if (!file.empty()) {
    file = expand_pattern(file);
    fd = open_file(file);
    if (fd < 0) {
      complaint = fmt::format("cannot open the log file {}: {}; logging to stderr", file,
                              why_not_opened(errno));
      fd = STDERR_FILENO;
    }
  }
  // The old logger is leaked: another thread may be inside it.
  logger_.store(make_logger(fd, counters_), std::memory_order_release);
  level_.store(level, std::memory_order_relaxed);
  if (!complaint.empty())
    warn("{}", complaint);
}

void Log::open_noexcept(LogLevel level, std::string_view file) noexcept {
  const int saved = errno;
  try {
    open_with(level, file);
  } catch (...) {
    counters_.count(Counter::log_dropped);
  }
  errno = saved;
}

void Log::open(LogLevel level, std::string_view file) noexcept {
  if (sink_ != nullptr) {
    level_.store(level, std::memory_order_relaxed);
    return;
  }
  asked_level_ = level;
  const size_t size = file.size() < sizeof asked_file_ ? file.size() : 0;
  file.copy(asked_file_, size); // of nothing, too
  asked_file_[size] = '\0';
  open_noexcept(level, file);
}

void Log::write(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept {
  if (sink_ == nullptr)
    resume();
  spdlog::logger* logger = logger_.load(std::memory_order_acquire);
  if ((sink_ == nullptr && logger == nullptr) || !enabled(level))
    return;
  const int saved = errno;
  try {
    char line[kLineBytes];
    const auto result = fmt::vformat_to_n(line, sizeof line, format, args);
    const size_t size = result.size < sizeof line ? result.size : sizeof line;
    if (sink_ != nullptr)
      sink_->line(level, std::string_view(line, size));
    else
      logger->log(spdlog_level(level), spdlog::string_view_t(line, size));
  } catch (...) {
    counters_.count(Counter::log_dropped);
  }
  errno = saved;
}

void Log::resume() noexcept {
  if (sink_ == nullptr && logger_.load(std::memory_order_acquire) == nullptr)
    open_noexcept(asked_level_, asked_file_);
}

void Log::in_child() noexcept {
  if (sink_ == nullptr) {
    level_.store(LogLevel::off, std::memory_order_relaxed);
    logger_.store(nullptr, std::memory_order_relaxed);
  }
  for (Said& entry : said_) {
    entry.key.store(0, std::memory_order_relaxed);
    entry.next_ns.store(0, std::memory_order_relaxed);
  }
}

bool parse_log_level(std::string_view text, LogLevel& out) noexcept {
  for (LogLevel level :
       {LogLevel::off, LogLevel::error, LogLevel::warn, LogLevel::info, LogLevel::debug}) {
    if (text == to_string(level)) {
      out = level;
      return true;
    }
  }
  return false;
}

std::string_view to_string(LogLevel level) noexcept {
  constexpr std::string_view names[] = {"off", "error", "warn", "info", "debug"};
  return names[static_cast<size_t>(level)];
}

} // namespace adverb::observe
