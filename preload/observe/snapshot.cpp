// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "observe/snapshot.h"

#include <bitset>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <memory>
#include <span>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace adverb::observe {

namespace {

template <size_t N> std::string field(const char (&text)[N]) {
  return std::string(text, strnlen(text, N));
}

std::string hex(std::span<const uint8_t> bytes) {
  std::string out;
  for (const uint8_t byte : bytes)
    out += fmt::format("{:02x}", byte);
  return out;
}

// Has `peers` hold whole entries only, and none of those that are never found so: their writer was
// stopped or killed in the midst. A read copies in no order that is known, so the sequence numbers
// are read before it, and after it once more.
bool read_peers(int fd, PeerSlots& peers) {
  constexpr int rounds_max = 100;
  const auto before = std::make_unique<PeerSlots>();
  const auto now = std::make_unique<PeerSlots>();
  const auto after = std::make_unique<PeerSlots>();
  std::bitset<kPeerEntries + 1> whole;
  for (int round = 0; round < rounds_max && !whole.all(); ++round) {
    for (PeerSlots* to : {before.get(), now.get(), after.get()})
      if (pread(fd, static_cast<void*>(to), sizeof *to, offsetof(Page, peers)) !=
          static_cast<ssize_t>(sizeof *to))
        return false;
    for (size_t i = 0; i < peers.size(); ++i) {
      const uint64_t sequence = (*before)[i].sequence.load(std::memory_order_relaxed);
      if (whole[i] || sequence % 2 != 0 ||
          (*after)[i].sequence.load(std::memory_order_relaxed) != sequence)
        continue;
      std::memcpy(static_cast<void*>(&peers[i]), &(*now)[i], sizeof peers[i]);
      peers[i].sequence.store(sequence, std::memory_order_relaxed);
      whole[i] = true;
    }
  }
  for (size_t i = 0; i < peers.size(); ++i)
    if (!whole[i])
      peers[i].sequence.store(0, std::memory_order_relaxed);
  return true;
}

nlohmann::ordered_json to_json(const PeerEntry& peer) {
  nlohmann::ordered_json out;
  out["address"] = field(peer.address);
  out["role"] = to_string(peer.role);
  out["level"] = to_string(peer.level);
  out["process"] = hex(peer.process);
  out["processes"] = peer.processes;
  nlohmann::ordered_json bounds;
  for (size_t i = 0; i < kPeerNumbers; ++i)
    (kPeerRows[i].bound ? bounds : out)[kPeerRows[i].name] = peer.numbers[i];
  out["bounds_hit"] = std::move(bounds);
  return out;
}

} // namespace

std::string_view to_string(PeerRole role) {
  constexpr std::string_view words[] = {"", "initiator", "owner"};
  const auto at = static_cast<size_t>(role);
  return at < std::size(words) ? words[at] : "";
}

std::string_view to_string(PeerLevel level) {
  constexpr std::string_view words[] = {"none", "host", "key", "vouched"};
  const auto at = static_cast<size_t>(level);
  return at < std::size(words) ? words[at] : "";
}

std::string short_process(const PeerEntry& peer) {
  return hex({peer.process, 4});
}

Snapshot snapshot_of(const PageHeader& header, const Tally& tally, const PeerSlots& peers) {
  Snapshot out;
  out.pid = header.pid;
  out.uid = header.uid;
  out.opened_ns = header.opened_ns;
  out.version = field(header.version);
  out.program = field(header.program);
  out.library = field(header.library);
  out.policy = field(header.policy);
  out.provider = field(header.provider);
  out.no_views = field(header.no_views);
  const std::string devices = field(header.devices);
  for (size_t at = 0; (at = devices.find_first_not_of(' ', at)) != std::string::npos;) {
    const size_t end = std::min(devices.find(' ', at), devices.size());
    out.devices.push_back(devices.substr(at, end - at));
    at = end;
  }
  for (size_t i = 0; i < kCounters; ++i)
    out.counters[i] = tally.counters[i].load(std::memory_order_relaxed);
  for (size_t i = 0; i < kGauges; ++i)
    out.gauges[i] = tally.gauges[i].load(std::memory_order_relaxed);
  for (size_t i = 0; i < kRuleSlots; ++i) {
    RuleHit rule{i, field(header.rule_labels[i]),
                 tally.rule_hits[i].load(std::memory_order_relaxed)};
    if (!rule.label.empty() || rule.hits != 0)
      out.rules.push_back(std::move(rule));
  }
  for (const PeerSlot& slot : peers)
    if (PeerEntry peer; read_peer(slot, peer))
      out.peers.push_back(peer);
  return out;
}

std::variant<std::unique_ptr<Page>, SnapshotError> read_page(int fd, const std::string& path) {
  auto page = std::make_unique<Page>();
  const ssize_t got = pread(fd, static_cast<void*>(page.get()), sizeof(Page), 0);
  const bool peers = got == static_cast<ssize_t>(sizeof(Page)) && read_peers(fd, page->peers);
  struct stat now{};
  fstat(fd, &now);

  const PageHeader& header = page->header;
  constexpr ssize_t fixed = offsetof(PageHeader, library);
  if (got < fixed || header.magic.load(std::memory_order_relaxed) != kPageMagic)
    return SnapshotError{fmt::format(
        "{}: not a complete page of an adverb process; it may be starting, try again", path)};
  if (header.layout != kLayout || now.st_size != static_cast<off_t>(sizeof(Page)) ||
      got != static_cast<ssize_t>(sizeof(Page)) || !peers)
    return SnapshotError{fmt::format(
        "process {} ({}) counts as libadverb.so {} does (layout {:016x}), this adverb is {} "
        "(layout {:016x}); use the `adverb` that came with that library",
        header.pid, field(header.program), field(header.version), header.layout, ADVERB_VERSION,
        kLayout)};
  return page;
}

int open_page(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

SnapshotError cannot_open(const std::string& path) {
  return {fmt::format("cannot open {}: {}", path, std::strerror(errno))};
}

std::variant<Snapshot, SnapshotError> read_snapshot(const std::string& path) {
  const int fd = open_page(path);
  if (fd < 0)
    return cannot_open(path);
  auto read = read_snapshot(fd, path);
  close(fd);
  return read;
}

std::variant<Snapshot, SnapshotError> read_snapshot(int fd, const std::string& path) {
  auto read = read_page(fd, path);
  if (auto* failed = std::get_if<SnapshotError>(&read))
    return std::move(*failed);
  const Page& page = *std::get<std::unique_ptr<Page>>(read);
  return snapshot_of(page.header, page.tally, page.peers);
}

nlohmann::ordered_json json_of(const Snapshot& snapshot) {
  nlohmann::ordered_json out;
  out["adverb"] = snapshot.version;
  out["pid"] = snapshot.pid;
  out["uid"] = snapshot.uid;
  out["live"] = snapshot.live;
  out["opened"] = static_cast<double>(snapshot.opened_ns) / 1e9;
  out["program"] = snapshot.program;
  out["library"] = snapshot.library;
  out["policy"] = snapshot.policy;
  out["provider"] = snapshot.provider;
  out["devices"] = snapshot.devices;
  if (!snapshot.no_views.empty())
    out["no_views"] = snapshot.no_views;
  out["counters"] = nlohmann::ordered_json::object();
  out["gauges"] = nlohmann::ordered_json::object();
  size_t counter = 0, gauge = 0;
  for (const Row& row : kRows) {
    if (row.kind == RowKind::counter)
      out["counters"][row.name] = snapshot.counters[counter++];
    else if (row.kind == RowKind::gauge)
      out["gauges"][row.name] = snapshot.gauges[gauge++];
  }
  out["rules"] = nlohmann::ordered_json::array();
  for (const RuleHit& rule : snapshot.rules)
    out["rules"].push_back({{"rule", rule.slot}, {"name", rule.label}, {"hits", rule.hits}});
  out["peers"] = nlohmann::ordered_json::array();
  for (const PeerEntry& peer : snapshot.peers)
    out["peers"].push_back(to_json(peer));
  return out;
}

// Program paths are bytes: what is not UTF-8 is replaced, never an exception.
std::string text_of(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string to_json(const Snapshot& snapshot, int indent) {
  return text_of(json_of(snapshot), indent);
}

} // namespace adverb::observe
