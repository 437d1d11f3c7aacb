// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The numbers of one process at one moment: read from its page, or taken from this process.
// May allocate and throw std::bad_alloc.
#pragma once

#include "observe/layout.h"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace adverb::observe {

struct RuleHit {
  size_t slot = 0;
  std::string label; ///< empty where the policy gave none
  uint64_t hits = 0;
};

struct Snapshot {
  uint32_t pid = 0;
  uint32_t uid = 0;
  uint64_t opened_ns = 0; ///< CLOCK_REALTIME
  bool live = true;       ///< the process was running when this was taken
  std::string version, program, library, policy, provider;
  std::vector<std::string> devices;
  std::string no_views; ///< why there are none; empty: nothing failed
  std::array<uint64_t, kCounters> counters{};
  std::array<int64_t, kGauges> gauges{};
  std::vector<RuleHit> rules;   ///< those with a label or a hit, by slot
  std::vector<PeerEntry> peers; ///< the last may sum up others
};

struct SnapshotError {
  std::string text; ///< a sentence: what is wrong with which page, and what to do
};

/// Reads the page at `path`. Never maps it: a file that shrinks meanwhile is an error, not a
/// signal.
std::variant<Snapshot, SnapshotError> read_snapshot(const std::string& path);
/// The same of an open file, which stays open and is named `path` in what is said of it.
std::variant<Snapshot, SnapshotError> read_snapshot(int fd, const std::string& path);

/// The page in a file, with whole entries of peers; or what is wrong with it.
std::variant<std::unique_ptr<Page>, SnapshotError> read_page(int fd, const std::string& path);
int open_page(const std::string& path); ///< a descriptor; below 0: errno says why
SnapshotError cannot_open(const std::string& path);

/// What a page says, also one that is in no file.
Snapshot snapshot_of(const PageHeader& header, const Tally& tally, const PeerSlots& peers);

/// The words of the JSON.
std::string_view to_string(PeerRole role);
std::string_view to_string(PeerLevel level);
/// The first digits of its process, by which peers of one host are told apart.
std::string short_process(const PeerEntry& peer);

/// One JSON object: identity, every counter and gauge by name, rules, peers; `indent` < 0 for one
/// line.
std::string to_json(const Snapshot& snapshot, int indent = 2);
nlohmann::ordered_json json_of(const Snapshot& snapshot);
std::string text_of(const nlohmann::ordered_json& json, int indent);

} // namespace adverb::observe
