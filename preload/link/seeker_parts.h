// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a Seeker keeps; for its own sources alone.
#pragma once

#include "link/companion.h"
#include "link/connection.h"
#include "link/links.h"
#include "link/peers.h"
#include "link/proof.h"
#include "link/wire.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <netinet/in.h>
#include <set>
#include <string>
#include <vector>

namespace adverb::link::seeking {

// Beyond the owner's own wait for RTR, and as long as one is waited for that is known to be there
// but does not answer: its process is stopped, or has no time. Where it dies the connection ends.
constexpr std::chrono::seconds bind_due{60};
// Between a connection that ended early and the next; doubling.
constexpr std::chrono::milliseconds again_after{30};

struct Link;

struct Search {
  LocalQp qp;
  std::shared_ptr<Protocol> protocol; // null: a probe
  std::function<void(Bound)> done;
  std::string host;
  std::set<Link*> tried;
  std::weak_ptr<Link> asked; // that has not answered yet
  uint64_t remote_handle = 0;
  bool proven = false; // needs no proof
  uint64_t timer = 0;
  int attempts = 0;     // connections made for it that were not lost
  int losses = 0;       // and those that were, before they had answered
  bool unknown = false; // a process that was asked does not own the queue pair
  bool finished = false;
  bool waits = false; // for the connection under way to its host
};

// A link on its way back, from one try to the next.
struct Away {
  std::shared_ptr<Connection> connection; // that is to stand for the one that was lost
  wire::Id nonce{};
  wire::Id owner_nonce{};
  uint64_t timer = 0;
  std::chrono::nanoseconds until{}; // of the World's clock
  std::chrono::milliseconds pause{};
  size_t tries = 0;
  int refused = 0;    // in a row: nobody listens
  size_t unknown = 0; // queue pairs that the process was not found by
};

struct Link {
  std::shared_ptr<Connection> connection;
  std::string host;
  wire::Id nonce{};
  wire::Id owner_nonce{};
  wire::Id peer{};           // its process
  std::shared_ptr<Peer> who; // once it is ready
  wire::Id ticket{};         // by which this goes on over another connection
  bool standing = false;     // its connection
  bool greeted = false;      // by a broker
  bool ready = false;
  bool ended = false;
  bool vouched = false;             // the owner needs no proof
  bool may_vouch = false;           // as its process is on this host
  const char* no_packets = nullptr; // why the owner takes no companion that packets carry
  uint64_t timer = 0;
  std::chrono::seconds waited{}; // for an answer, once the connection stood
  std::shared_ptr<Search> first; // whose target the hello names
  struct Path {
    std::shared_ptr<Companion> channel;
    std::shared_ptr<Protocol> protocol;
    bool up = false;
    wire::Companion asked{};
    wire::CompanionAck answered{}; // all 0 until it is
    std::vector<std::shared_ptr<Search>> waiting;
    LocalQp qp;         // whose path it takes
    uint64_t again = 0; // timer, while the owner had no room; nothing is asked until then
    unsigned tries = 0; // that it had none, one after the other
  };
  std::map<std::string, Path> paths;
  std::unique_ptr<Away> away; // while its connection is lost
  // The last ones: of what was under way then nobody knows whether it was heard.
  std::deque<uint64_t> unbound;
};

// A queue pair on its way to be proven.
struct Claim {
  // `held`: answered, but who does so has shown nothing yet of being where the queue pair's peer
  // is.
  enum class Stage : uint8_t {
    waits,
    asked,
    held,
    offered,
    told
  } stage = Stage::waits; // to be asked
  std::weak_ptr<Link> link;
  uint32_t key = 0;
  std::function<void(const Offer&)> offered;
  std::function<void(wire::Answer)> done;
  Offer offer; // while it is held
  wire::Slot slot{};
  KeyPair pair;
  Transcript transcript{};
  wire::Mac expected{}; // of the owner
};

// Queue pairs on one path share a channel of each protocol.
std::string path_key(const LocalQp& qp, uint8_t protocol);

struct Host {
  sockaddr_in6 address{};
  std::string name;
  std::vector<std::shared_ptr<Link>> links; // ready ones
  std::shared_ptr<Link> under_way;          // a connection that has not been answered yet
  bool known = false;                       // has answered as adverb before
  bool proven = false; // a process there was at the other end of one of our queue pairs
  std::deque<std::shared_ptr<Search>> waiting; // for the connection under way
  std::chrono::nanoseconds stock_until{};      // of the World's clock
  int silences = 0;                            // in a row
  bool refused = false;                        // the last time it was asked, and since when
  std::chrono::nanoseconds refused_from{};
};

} // namespace adverb::link::seeking
