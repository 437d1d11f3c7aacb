// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The events of a trace at one moment: of this process, of a page, or of a statistics file. May
// allocate and throw std::bad_alloc.
#pragma once

#include "observe/snapshot.h"

#include <utility>

namespace adverb::observe {

struct TraceLog {
  uint32_t pid = 0;
  std::string program;
  uint64_t taken_ns = 0;  ///< when, by the clock of the events
  int64_t to_real_ns = 0; ///< added to an event's time it is one of CLOCK_REALTIME
  std::vector<std::pair<uint64_t, TraceEvent>> events; ///< whole ones, by their numbers
};

/// Of this process.
TraceLog trace_of(const PageHeader& header, const TraceRing& ring);
/// Of the page at `path`, or of an open file, as read_snapshot().
std::variant<TraceLog, SnapshotError> read_trace(const std::string& path);
std::variant<TraceLog, SnapshotError> read_trace(int fd, const std::string& path);
/// Of a statistics file ($ADVERB_STATS_FILE), which may be of another version: the error says so.
std::variant<TraceLog, SnapshotError> read_trace_of_file(const std::string& path);

/// A statistics file: what to_json(snapshot) says, and under "trace" numbers in the order of
/// TraceEvent's fields.
std::string to_json(const Snapshot& snapshot, const TraceLog& log);

} // namespace adverb::observe
