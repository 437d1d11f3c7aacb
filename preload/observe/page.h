// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The shared page of a process: a small file that `adverb stat` reads while the process runs.
//
// One file per process, 0600, `adverb.<uid>.<pid>.<starttime>` in $XDG_RUNTIME_DIR or /dev/shm.
// It is created at the first managed use and unlinked at a normal exit; a killed process leaves it
// and the next adverb process or `adverb stat` of that user removes it. Where it cannot be created
// the process runs on, counting privately, and the log says so once.
#pragma once

#include "observe/counters.h"
#include "observe/layout.h"
#include "observe/log.h"
#include "observe/trace.h"
#include "world/sync.h"

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace adverb::observe {

/// What the process is, shown by `adverb stat` and in the start line. Copied; cut where too long.
struct Identity {
  std::string_view library;  ///< path of libadverb.so
  std::string_view policy;   ///< where the policy came from: a path, or "built-in NAME"
  std::string_view provider; ///< verbs provider of the first device, e.g. "rxe"
  std::string_view devices;  ///< device names, separated by blanks
};

/// The page of one adverb; a process has one, for its file is named after the process. Any thread.
class SharedPage {
public:
  /// `kept_private`: no file, whatever comes; counts stay in memory of this adverb alone.
  SharedPage(Counters& counters, PeerTable& peers, Trace& trace, Log& log,
             bool kept_private = false) noexcept
      : counters_(counters), peers_(peers), trace_(trace), log_(log), kept_private_(kept_private) {}
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  /// First managed use: opens the page and writes the start line (level info), once; later calls
  /// return at once. Again effective in a fork child.
  void start(const Identity& identity) noexcept;
  bool is_private() const noexcept { return kept_private_; }
  bool started() const noexcept { return started_.load(std::memory_order_acquire); }

  /// A device opened later than start(): appended to the page's list unless already there.
  void add_device(std::string_view name) noexcept;

  /// Name shown beside the hits of rule `slot`; call before or after start().
  void label_rule(size_t slot, std::string_view label) noexcept;

  /// Why peers' devices cannot read unpinned memory through the module, in words; empty: they can,
  /// or nobody has asked. Copied; cut where too long. Effective after start().
  void tell_no_views(std::string_view why) noexcept;

  /// What it says of the process beside the numbers, whether there is a file or not.
  const PageHeader& header() const noexcept { return *header_.load(std::memory_order_acquire); }

  /// Normal exit: writes $ADVERB_STATS_FILE ("%p" becomes the process id) and unlinks the page,
  /// once however many threads call; nothing unless started. `before` runs at its beginning, while
  /// all other threads still run. exit.h has it called after the program's own exit handlers;
  /// _exit(), exec and fatal signals go past it, so they leave no statistics file.
  void finish(void (*before)() noexcept = nullptr) noexcept;

  /// The child of a fork counts from zero on a page of its own (opened by its next start()) and
  /// leaves the parent's page alone. Takes no lock.
  void in_child() noexcept;

private:
  class TextLock;
  void describe(const Identity& identity) noexcept;
  void open();
  void write_statistics();
  void unlink_file() noexcept;

  Counters& counters_;
  PeerTable& peers_;
  Trace& trace_;
  Log& log_;
  const bool kept_private_;
  PageHeader own_{}; // while there is no file
  std::atomic<PageHeader*> header_{&own_};
  Page* page_ = nullptr; // mapped; written before header_
  std::atomic<bool> started_{false};
  char path_[512] = {}; // of the page's file, empty without one
  // Orders writers of the header's text. Held for a copy of some bytes, never over a system call.
  std::atomic_flag text_busy_ = ATOMIC_FLAG_INIT;
  // Timed, so that an exit() from a signal handler inside finish() cannot hang the program.
  std::timed_mutex finishing_;
  bool finished_ = false; // under finishing_
};

} // namespace adverb::observe
