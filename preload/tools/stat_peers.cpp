// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/stat_peers.h"
#include "observe/layout.h"
#include "tools/text.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace adverb::tools {
namespace {

using observe::PeerEntry;
using observe::PeerNumber;

using Line = std::array<std::string, 12>;

constexpr std::string_view titles[] = {"peer",     "process",  "role",   "level",
                                       "links",    "channels", "qps",    "proven",
                                       "requests", "refused",  "misses", "bounds hit"};
constexpr size_t texts = 4; // columns before those of numbers

std::string join(const std::string& before, const std::string& word) {
  return before.empty() ? word : before + ", " + word;
}

// What of it was refused, for whatever reason but a bound.
std::string refused(const PeerEntry& peer) {
  std::string out;
  for (const auto& [number, word] : {std::pair{PeerNumber::hellos_refused, "hello"},
                                     std::pair{PeerNumber::auth_failures, "auth"},
                                     std::pair{PeerNumber::requests_unbound, "unbound"},
                                     std::pair{PeerNumber::malformed_messages, "malformed"}})
    if (peer[number] != 0)
      out = join(out, fmt::format("{} {}", peer[number], word));
  return out.empty() ? "0" : out;
}

std::string bounds_hit(const PeerEntry& peer) {
  std::string out;
  for (size_t i = 0; i < observe::kPeerNumbers; ++i)
    if (observe::kPeerRows[i].bound && peer.numbers[i] != 0)
      out = join(out, fmt::format("{} {}", peer.numbers[i], observe::kPeerRows[i].name));
  return out.empty() ? "0" : out;
}

Line line_of(const PeerEntry& peer) {
  const std::string address(peer.address, strnlen(peer.address, sizeof peer.address));
  const bool one = peer.role != observe::PeerRole::none;
  const auto text = [&](PeerNumber n) { return std::to_string(peer[n]); };
  return {printable(address),
          one ? observe::short_process(peer) : fmt::format("{} of them", peer.processes),
          std::string(one ? to_string(peer.role) : "-"),
          std::string(one ? to_string(peer.level) : "-"),
          text(PeerNumber::links),
          text(PeerNumber::channels),
          text(PeerNumber::qps_bound),
          text(PeerNumber::qps_proven),
          text(PeerNumber::requests),
          refused(peer),
          fmt::format("{} of {}", peer[PeerNumber::key_misses], peer[PeerNumber::key_queries]),
          bounds_hit(peer)};
}

} // namespace

void print_peers(const observe::Snapshot& snapshot) {
  if (snapshot.peers.empty()) {
    fmt::print("  no peer has asked it, and it has asked none\n");
    return;
  }
  std::vector<Line> lines(1);
  std::ranges::copy(titles, lines[0].begin());
  for (const PeerEntry& peer : snapshot.peers)
    lines.push_back(line_of(peer));
  Line::size_type column = 0;
  std::array<size_t, std::tuple_size_v<Line>> widths{};
  for (const Line& line : lines)
    for (column = 0; column < line.size(); ++column)
      widths[column] = std::max(widths[column], line[column].size());
  for (const Line& line : lines) {
    std::string out;
    for (column = 0; column < line.size(); ++column)
      out += column < texts || column + 1 == line.size()
                 ? fmt::format("  {:<{}}", line[column], widths[column])
                 : fmt::format("  {:>{}}", line[column], widths[column]);
    out.resize(out.find_last_not_of(' ') + 1);
    fmt::print("{}\n", out);
  }
}

} // namespace adverb::tools
