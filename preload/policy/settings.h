// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The settings a policy gives to a whole process, and the words its rules are made of.
// Plain data, filled once while a policy loads and constant from then on: read from any thread.
#pragma once

#include <netinet/in.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace adverb::policy {

// Of each of these the first word holds if no rule says otherwise, and is safe for every peer.

// Whether a queue pair looks for adverb at its peer (rule action "peers").
enum class Peers : uint8_t { automatic, none };

// Whether unloaded and offloaded writes keep RC's order (rule action "order").
enum class Order : uint8_t { strict, relaxed };

// Who makes good what the network loses of requests that go to the peer's CPU: the device, by a
// reliable connection; or adverb, of packets; or who of the two costs less by what is measured of
// the path (rule action "reliability").
enum class Reliability : uint8_t { device, software, automatic };

// Who has to prove that a queue pair is its own by using it, before it is served: all that are not
// this user's or root's processes on this host, or all (link.proof).
enum class Proof : uint8_t { others, all };

// Where the host's broker runs if none is there: in a process of its own, or in the first program
// that needs one (link.broker).
enum class BrokerPlace : uint8_t { inside, process };

enum class LogLevel : uint8_t { debug, info, warn, error, off };

struct LogSettings {
  LogLevel level = LogLevel::warn;
  std::string file; // absolute path; empty means stderr
};

// An address range. IPv4 is held v4-mapped, so one comparison serves both families.
struct Cidr {
  in6_addr address{};
  unsigned bits = 0; // significant bits of `address`, 0…128 (IPv4 /8 is 104)

  bool contains(const in6_addr& other) const noexcept;
  bool contains(const Cidr& other) const noexcept;
  bool operator==(const Cidr& other) const noexcept;
};

// How processes find and trust each other (design §8).
struct LinkSettings {
  // One entry of link.peers: what a queue pair's address vector names → where its broker listens.
  struct Mapping {
    enum class By : uint8_t { gid, guid, lid };
    By by = By::gid;
    std::array<uint8_t, 16> key{}; // gid: all 16 bytes; guid: the first 8; lid: the first 2 (BE)
    in6_addr address{};
  };

  uint16_t port = 7771;
  std::chrono::milliseconds hello_timeout{3500};
  std::chrono::microseconds spin{50}; // after the last message, before who takes them sleeps
  std::vector<Cidr> allow;            // other hosts that may link; empty: all
  Proof proof = Proof::others;
  BrokerPlace broker = BrokerPlace::inside;
  std::vector<Mapping> mapped; // first match wins
  std::vector<uint8_t> key;    // pre-shared key; empty means keyless

  // True when link.allow holds the address (IPv4 must be v4-mapped). Who may link of this
  // host is the link's own rule and is not known here.
  bool allowed(const in6_addr& address) const noexcept;

  // Where link.peers says the owner of this GID (all 16 bytes, network order) listens.
  std::optional<in6_addr> mapped_peer(const std::array<uint8_t, 16>& gid) const noexcept;
  std::optional<in6_addr> mapped_lid(uint16_t lid) const noexcept;
};

// The settings of a whole process. Defaults are the schema's.
struct Settings {
  LogSettings log;
  LinkSettings link;
  uint64_t staging = 16u << 20;              // bytes, before RLIMIT_MEMLOCK
  std::optional<uint64_t> pinned_budget;     // bytes; nothing: "auto", what the host has room for
  std::chrono::milliseconds recall_wait{10}; // of a change of mappings, for what peers have leased
  bool serve = true; // the CPU carries out peers' requests to pinned regions, if peers ask
};

} // namespace adverb::policy
