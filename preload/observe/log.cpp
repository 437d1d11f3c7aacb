// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// spdlog lives in this file only: header-only, synchronous, without its registry. Loggers are
// leaked on purpose: lines may come while the program runs its destructors.
#define SPDLOG_LEVEL_NAMES {"trace", "debug", "info", "warn", "error", "critical", "off"}

#include "observe/log.h"

#include "observe/counters.h"
#include "observe/lifecycle.h"
#include "observe/pattern.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include <cerrno>
#include <climits>
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

/// Writes whole lines with write(2): no stdio buffers that a fork could double, no stdio locks a
/// fork could leave held.
class DescriptorSink final : public spdlog::sinks::base_sink<std::mutex> {
public:
  /// Takes over `fd` unless it is stderr.
  explicit DescriptorSink(int fd) : fd_(fd) {
    if (fd_ != STDERR_FILENO && fstat(fd_, &identity_) != 0)
      fd_ = -1;
  }

protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (!still_ours() || !write_line(line.data(), line.size()))
      count(Counter::log_dropped);
  }
  void flush_() override {}

private:
  /// A program that closes every descriptor (daemons do) may by now use the number for a file or
  /// socket of its own: never write a log line into that.
  bool still_ours() const {
    if (fd_ == STDERR_FILENO)
      return true;
    struct stat now;
    return fd_ >= 0 && fstat(fd_, &now) == 0 && now.st_dev == identity_.st_dev &&
           now.st_ino == identity_.st_ino;
  }

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
  struct stat identity_{};
};

constinit std::atomic<spdlog::logger*> g_logger{nullptr};

// What log_open() was last asked for, so that a fork child can open the same log again.
constinit LogLevel g_asked_level = LogLevel::warn;
constinit char g_asked_file[PATH_MAX] = {};

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

spdlog::logger* make_logger(int fd) {
  auto sink = std::make_shared<DescriptorSink>(fd);
  auto* logger = new spdlog::logger("adverb", std::move(sink));
  // Seconds since the epoch in files: local time would take libc's time zone lock, which a fork in
  // another thread may leave held for ever in the child.
  logger->set_pattern(fd == STDERR_FILENO ? "adverb[%P] %l: %v" : "%E.%e adverb[%P] %l: %v");
  logger->set_level(spdlog::level::trace);
  logger->set_error_handler([](const std::string&) { count(Counter::log_dropped); });
  return logger;
}

void open_with(LogLevel level, std::string file) {
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
    fd = open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);
    if (fd >= 0 && fd <= STDERR_FILENO) {
      // The program runs with a standard descriptor closed; its next open() expects that number.
      const int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
      close(fd);
      fd = moved;
    }
    if (fd < 0) {
      complaint = fmt::format("cannot open the log file {}: {}; logging to stderr", file,
                              std::strerror(errno));
      fd = STDERR_FILENO;
    }
  }
  // The old logger is leaked: another thread may be inside it.
  g_logger.store(make_logger(fd), std::memory_order_release);
  detail::log_level.store(level, std::memory_order_relaxed);
  if (!complaint.empty())
    log_warn("{}", complaint);
}

void open_noexcept(LogLevel level, std::string_view file) noexcept {
  const int saved = errno;
  try {
    install_fork_handler();
    open_with(level, std::string(file));
  } catch (...) {
    count(Counter::log_dropped);
  }
  errno = saved;
}

} // namespace

namespace detail {

// Everything passes until the first line has opened the log and learnt the real level.
constinit std::atomic<LogLevel> log_level{LogLevel::debug};

void vlog(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept {
  if (g_logger.load(std::memory_order_acquire) == nullptr)
    open_noexcept(g_asked_level, g_asked_file);
  spdlog::logger* logger = g_logger.load(std::memory_order_acquire);
  if (logger == nullptr || !log_enabled(level))
    return;
  const int saved = errno;
  try {
    char line[kLineBytes];
    const auto result = fmt::vformat_to_n(line, sizeof line, format, args);
    const size_t size = result.size < sizeof line ? result.size : sizeof line;
    logger->log(spdlog_level(level), spdlog::string_view_t(line, size));
  } catch (...) {
    count(Counter::log_dropped);
  }
  errno = saved;
}

void log_silence() noexcept {
  log_level.store(LogLevel::off, std::memory_order_relaxed);
  g_logger.store(nullptr, std::memory_order_relaxed);
}

void log_resume() noexcept {
  if (g_logger.load(std::memory_order_acquire) == nullptr)
    open_noexcept(g_asked_level, g_asked_file);
}

} // namespace detail

void log_open(LogLevel level, std::string_view file) noexcept {
  g_asked_level = level;
  const size_t size = file.size() < sizeof g_asked_file ? file.size() : 0;
  std::memcpy(g_asked_file, file.data(), size);
  g_asked_file[size] = '\0';
  open_noexcept(level, file);
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
