// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How the shared page lies in its file: shared by the process that writes it and `adverb stat`.
//
// The fields up to `program` keep their places in every version, so that a tool can at least name
// a process whose counters it does not know. Everything after is as `layout` says: a hash of
// counters.def, of peers.def and of the sizes here. Integers are in host order: pages never leave
// the host.
#pragma once

#include "observe/counters.h"
#include "observe/peers.h"
#include "observe/trace.h"

#include <string_view>

namespace adverb::observe {

enum class RowKind : uint8_t { group, counter, gauge };

/// One line of counters.def.
struct Row {
  RowKind kind;
  const char* name; ///< or the group's title
  const char* unit;
  const char* help;
};

inline constexpr Row kRows[] = {
#define GROUP(title) {RowKind::group, title, "", ""},
#define COUNTER(name, unit, help) {RowKind::counter, #name, #unit, help},
#define GAUGE(name, unit, help) {RowKind::gauge, #name, #unit, help},
#include "observe/counters.def"
};

/// One line of peers.def.
struct PeerRow {
  const char* name;
  bool bound;
  const char* help;
};

inline constexpr PeerRow kPeerRows[] = {
#define PEER_GAUGE(name, help) {#name, false, help},
#define PEER_COUNTER(name, help) {#name, false, help},
#define PEER_BOUND(name, help) {#name, true, help},
#include "observe/peers.def"
};

inline constexpr size_t kRuleLabelBytes = 48;

struct PageHeader {
  std::atomic<uint64_t> magic; ///< kPageMagic, stored last: until then the page is not ready
  uint64_t layout;             ///< kLayout of the writer
  uint32_t pid;                ///< in the writer's pid namespace
  uint32_t uid;
  uint64_t start_time;    ///< of the process, clock ticks since boot (/proc/PID/stat, field 22)
  uint64_t pid_namespace; ///< inode of /proc/self/ns/pid
  uint64_t opened_ns;     ///< CLOCK_REALTIME when the page was opened
  char version[32];
  char program[256];

  char library[256];
  char policy[256];
  char provider[64];
  char devices[512];  ///< names separated by blanks
  char no_views[256]; ///< why peers' devices cannot read unpinned memory; empty: nothing failed
  char rule_labels[kRuleSlots][kRuleLabelBytes];
};

struct Page {
  PageHeader header;
  Tally tally;
  PeerSlots peers;
  TraceRing trace;
};

inline constexpr uint64_t kPageMagic = 0x3147504252564441; // "ADVRBPG1"

constexpr uint64_t fnv1a(std::string_view text, uint64_t hash = 0xcbf29ce484222325) {
  for (char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3;
  }
  return hash;
}

constexpr uint64_t layout_hash() {
  uint64_t hash = fnv1a("");
  for (const Row& row : kRows) {
    if (row.kind == RowKind::group)
      continue;
    hash = fnv1a(row.kind == RowKind::gauge ? "gauge " : "counter ", hash);
    hash = fnv1a(row.name, hash);
  }
  for (const PeerRow& row : kPeerRows) {
    hash = fnv1a(row.bound ? "bound " : "peer ", hash);
    hash = fnv1a(row.name, hash);
  }
  for (uint64_t size : {sizeof(PageHeader), sizeof(Tally), kRuleSlots, kRuleLabelBytes,
                        sizeof(PeerSlots), sizeof(TraceRing), size_t{kTraceMeaning}})
    for (int shift = 0; shift < 64; shift += 8)
      hash = (hash ^ (size >> shift & 0xff)) * 0x100000001b3;
  return hash;
}

inline constexpr uint64_t kLayout = layout_hash();

static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8,
              "other processes read the counters as plain words");

} // namespace adverb::observe
