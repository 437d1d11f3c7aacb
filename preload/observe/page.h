// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The shared page of a process: a small file that `adverb stat` reads while the process runs.
//
// One file per process, 0600, `adverb.<uid>.<pid>.<starttime>` in $XDG_RUNTIME_DIR or /dev/shm.
// It is created at the first managed use and unlinked at a normal exit; a killed process leaves it
// and the next adverb process or `adverb stat` of that user removes it. Where it cannot be created
// the process runs on, counting privately, and the log says so once.
#pragma once

#include <cstddef>
#include <string_view>

namespace adverb::observe {

/// What the process is, shown by `adverb stat` and in the start line. Copied; cut where too long.
struct Identity {
  std::string_view library;  ///< path of libadverb.so
  std::string_view policy;   ///< where the policy came from: a path, or "built-in NAME"
  std::string_view provider; ///< verbs provider of the first device, e.g. "rxe"
  std::string_view devices;  ///< device names, separated by blanks
};

/// First managed use: opens the page and writes the start line (level info), once per process;
/// later calls return at once. Any thread. Again effective in a fork child.
void start(const Identity& identity) noexcept;

/// A device opened later than start(): appended to the page's list unless already there.
void add_device(std::string_view name) noexcept;

/// Name shown beside the hits of rule `slot`; call before or after start().
void label_rule(size_t slot, std::string_view label) noexcept;

/// The child of a fork counts from zero on a page of its own (opened by its next start()), leaves
/// the parent's page alone and does not log before log_open() or start(). Installed with
/// pthread_atfork by start() and log_open(); calling it more often is harmless. Async-signal-safe.
void after_fork_child() noexcept;

/// Normal exit: writes $ADVERB_STATS_FILE ("%p" becomes the process id) and unlinks the page, once
/// however many threads call. Runs by itself after the program's own exit handlers; _exit(), exec
/// and fatal signals go past it, so they leave no statistics file.
void finish() noexcept;

/// Runs `what` at the beginning of finish(), while all other threads still run. The last one set
/// counts.
void before_finish(void (*what)() noexcept) noexcept;

} // namespace adverb::observe
