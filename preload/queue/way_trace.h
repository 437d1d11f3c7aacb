// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What `adverb trace` is told of the ways that a queue pair's one-sided requests take: the way of
// the first request of each shape, and when such requests take another way. A workload may change
// between two with each request, so after eight changes the 16th, 32nd and so on are told.
//
// A shape is an opcode, a power of two of bytes, and a remote key. A queue pair has 16; what finds
// its place taken is not traced. Of a key that the peer's device judges the short way is told of
// once: all requests under it take that. The queue pair's lock guards it.
#pragma once

#include "observe/trace.h"
#include "steering/choose.h"

#include <array>
#include <bit>
#include <cstdint>

#include <infiniband/verbs.h>

namespace adverb::queue {

class WayTrace {
public:
  struct Request {
    uint8_t opcode;  // an ibv_wr_opcode, or what stands for all
    uint64_t length; // bytes
    uint32_t key;    // the remote one
  };
  // What stands for every opcode and length.
  static constexpr uint8_t any_opcode = observe::trace_any_opcode;
  // `row`: its way's, in ways.def.
  void note(observe::Trace& trace, uint32_t qpn, const Request& r, size_t row,
            steering::Reason reason) noexcept {
    const uint64_t shape = shape_of(r);
    // Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4).
    Entry& entry = entries_[shape * 0x9E3779B97F4A7C15 >> 60];
    const auto taken = static_cast<uint16_t>(row << 8 | static_cast<size_t>(reason));
    if (entry.shape == shape && entry.taken == taken) [[likely]]
      return;
    if (entry.shape == shape || entry.shape == 0)
      change(trace, qpn, r, entry, shape, taken);
  }
  // Never 0.
  static uint64_t shape_of(const Request& r) noexcept {
    return uint64_t{r.key} << 16 | static_cast<uint64_t>(std::bit_width(r.length)) << 8 |
           (uint64_t{r.opcode} + 1);
  }
  // Another peer, or the same one anew.
  void clear() noexcept { entries_ = {}; }

private:
  struct Entry {
    uint64_t shape = 0;   // 0: free
    uint32_t changes = 0; // the first way is one, too
    uint16_t taken = 0;
  };
  [[gnu::cold]] static void change(observe::Trace& trace, uint32_t qpn, const Request& r,
                                   Entry& entry, uint64_t shape, uint16_t taken) noexcept {
    entry.shape = shape;
    entry.taken = taken;
    if (++entry.changes > 8 && !std::has_single_bit(entry.changes))
      return;
    trace.add({.qpn = qpn,
               .kind = observe::TraceKind::way,
               .first = r.opcode,
               .second = static_cast<uint8_t>(taken >> 8),
               .reason = static_cast<uint8_t>(taken),
               .key = r.key,
               .address = entry.changes,
               .bytes = r.length});
  }

  std::array<Entry, 16> entries_{};
};

} // namespace adverb::queue
