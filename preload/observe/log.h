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
// silent until it calls log_open() again. Lines are cut at 1000 bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include <fmt/core.h>

namespace adverb::observe {

enum class LogLevel : uint8_t { off, error, warn, info, debug };

/// Reads "off", "error", "warn", "info", "debug" into `out`; false for anything else.
bool parse_log_level(std::string_view text, LogLevel& out) noexcept;
std::string_view to_string(LogLevel level) noexcept;

/// Open (or reopen, e.g. in a fork child) the log with what the policy says. `file` empty: stderr;
/// "%p" in it becomes the process id. ADVERB_LOG and ADVERB_LOG_FILE win over both arguments unless
/// the program is setuid. Without this call the first line opens it with level warn. A file that
/// cannot be opened is reported on stderr, where the log then goes.
void log_open(LogLevel level, std::string_view file = {}) noexcept;

namespace detail {
extern std::atomic<LogLevel> log_level;
void vlog(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept;
} // namespace detail

inline bool log_enabled(LogLevel level) noexcept {
  return level <= detail::log_level.load(std::memory_order_relaxed);
}

template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) noexcept {
  if (log_enabled(LogLevel::error))
    detail::vlog(LogLevel::error, format, fmt::make_format_args(args...));
}

template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) noexcept {
  if (log_enabled(LogLevel::warn))
    detail::vlog(LogLevel::warn, format, fmt::make_format_args(args...));
}

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) noexcept {
  if (log_enabled(LogLevel::info))
    detail::vlog(LogLevel::info, format, fmt::make_format_args(args...));
}

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) noexcept {
  if (log_enabled(LogLevel::debug))
    detail::vlog(LogLevel::debug, format, fmt::make_format_args(args...));
}

/// True the first time this process asks for `key`: `if (log_once("odp-off")) log_warn(…);`.
/// Remembers some hundreds of keys; past that it says false and counts log_dropped.
bool log_once(std::string_view key) noexcept;

/// True at most once per `seconds` for `key`; what is held back counts as log_dropped.
bool log_every(std::string_view key, unsigned seconds) noexcept;

} // namespace adverb::observe
