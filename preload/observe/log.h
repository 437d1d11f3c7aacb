// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The log: one line per event a person may have to act on, prefixed `adverb[pid] level: `.
//
// Levels, and what belongs there:
//   error  the program got an error because of adverb or its peer
//   warn   adverb fell back, or something will not work as asked
//   info   a few lines per process: what adverb is and decided
//   debug  per-object events (region, queue pair, link)
//
// Any thread, any time but not on post or poll and not in signal handlers. Nothing here throws or
// needs destruction: lines may still be written while the program exits. After fork the child is
// silent until it calls open() again. Lines are cut at 1000 bytes.
#pragma once

#include "observe/counters.h"
#include "world/clock.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace spdlog {
class logger;
}

namespace adverb::observe {

enum class LogLevel : uint8_t { off, error, warn, info, debug };

/// For a test that has put a pipe in the place of stderr: as if the process had been started so.
/// Before the log is opened.
void take_stderr_as_first() noexcept;

/// Reads "off", "error", "warn", "info", "debug" into `out`; false for anything else.
bool parse_log_level(std::string_view text, LogLevel& out) noexcept;
std::string_view to_string(LogLevel level) noexcept;

/// Where a test's or a simulation's lines go in the place of stderr and files. Any thread.
class LogSink {
public:
  virtual ~LogSink() = default;
  virtual void line(LogLevel level, std::string_view text) noexcept = 0;
};

class Log {
public:
  /// `sink` null: stderr or a file, opened by open() or the first line. Nothing is opened here.
  Log(Counters& counters, Clock& clock, LogSink* sink = nullptr) noexcept
      : counters_(counters), clock_(clock), sink_(sink) {}
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  /// Open (or reopen, e.g. in a fork child) the log with what the policy says. `file` empty:
  /// stderr; "%p" in it becomes the process id. ADVERB_LOG and ADVERB_LOG_FILE win over both
  /// arguments unless the program is setuid. Without this call the first line opens it with level
  /// warn. A file that cannot be opened is reported on stderr, where the log then goes.
  void open(LogLevel level, std::string_view file = {}) noexcept;

  /// What it was opened with, ADVERB_LOG and ADVERB_LOG_FILE seen to; file empty: stderr. For who
  /// starts another process that is to write to the same place.
  LogLevel level() const noexcept { return level_.load(std::memory_order_relaxed); }
  std::string file() const;

  bool enabled(LogLevel level) const noexcept {
    return level <= level_.load(std::memory_order_relaxed);
  }

  template <typename... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) noexcept {
    if (enabled(LogLevel::error))
      write(LogLevel::error, format, fmt::make_format_args(args...));
  }

  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) noexcept {
    if (enabled(LogLevel::warn))
      write(LogLevel::warn, format, fmt::make_format_args(args...));
  }

  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) noexcept {
    if (enabled(LogLevel::info))
      write(LogLevel::info, format, fmt::make_format_args(args...));
  }

  template <typename... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) noexcept {
    if (enabled(LogLevel::debug))
      write(LogLevel::debug, format, fmt::make_format_args(args...));
  }

  /// True the first time for `key`: `if (log.once("odp-off")) log.warn(…);`. Remembers some
  /// hundreds of keys; past that it says false and counts log_dropped.
  bool once(std::string_view key) noexcept;

  /// True at most once per `seconds` for `key`; what is held back counts as log_dropped.
  bool every(std::string_view key, unsigned seconds) noexcept;

  /// In a fork child: no output, nothing has been said yet, the parent's logger is abandoned.
  void in_child() noexcept;
  /// Opens the log as it was last asked for, unless it is open.
  void resume() noexcept;

private:
  void write(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept;
  void open_with(LogLevel level, std::string_view file);
  void open_noexcept(LogLevel level, std::string_view file) noexcept;

  /// Which lines were said before: a fixed open-addressed table of key hashes.
  struct Said {
    std::atomic<uint64_t> key{0};     // hash, 0 while free
    std::atomic<uint64_t> next_ns{0}; // of the clock, before which every() holds back
  };
  Said* find(std::string_view key, bool& fresh) noexcept;
  static constexpr size_t keys = 512;

  Counters& counters_;
  Clock& clock_;
  LogSink* const sink_;
  std::atomic<spdlog::logger*> logger_{nullptr};
  // Everything passes until the first line has opened the log and learnt the real level.
  std::atomic<LogLevel> level_{LogLevel::debug};
  // What open() was last asked for, so that a fork child can open the same log again.
  LogLevel asked_level_ = LogLevel::warn;
  char asked_file_[4096] = {}; // PATH_MAX
  Said said_[keys];
};

} // namespace adverb::observe
