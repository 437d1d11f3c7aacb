// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The initiator's side of links: finds the process behind a queue pair's peer, and a channel to it.
#pragma once

#include "link/device.h"
#include "link/links.h"
#include "link/met_paths.h"
#include "link/peers.h"
#include "link/proof.h"
#include "link/wire.h"

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace adverb {
class World;
}

namespace adverb::link {
class Companion;

// seeker_parts.h
namespace seeking {
struct Link;
struct Host;
struct Search; // one bind under way
struct Away;
struct Claim;
} // namespace seeking

// Service thread only.
class Seeker {
public:
  Seeker(World& world, Devices& devices, const wire::Id& process, Peers& peers);
  ~Seeker();
  Seeker(const Seeker&) = delete;
  Seeker& operator=(const Seeker&) = delete;

  // For a channel of `protocol`; null: only to know.
  void bind(const LocalQp& qp, std::shared_ptr<Protocol> protocol, std::function<void(Bound)> done);
  void cancel(uint64_t handle);
  void unbind(uint64_t handle);
  // As Links' are. This one any thread's.
  bool has_met(const LocalQp& qp, uint8_t protocol) const;
  void claim(uint64_t handle, uint32_t key, std::function<void(const Offer&)> offered);
  void prove(uint64_t handle, const wire::Share& read, std::function<void(wire::Answer)> done);
  // What there is of each link (Peers::make()).
  void collect();

private:
  using Link = seeking::Link;
  using Host = seeking::Host;
  using Search = seeking::Search;
  using Away = seeking::Away;
  using Claim = seeking::Claim;
  struct Asked { // where a queue pair was bound, or asked for it, and whom it means
    std::weak_ptr<Link> link;
    wire::Bind bind{};
    uint64_t remote_handle = 0; // once it is bound
    std::string path;           // of the link
    bool proven = false;
  };

  void go_on(const std::shared_ptr<Search>& search);
  void ask(const std::shared_ptr<Link>& link, const std::shared_ptr<Search>& search);
  void on_bind_ack(const std::shared_ptr<Link>& link, const wire::BindAck& ack);
  void again_later(const std::shared_ptr<Search>& search, std::chrono::milliseconds pause);
  bool again(const std::shared_ptr<Link>& link, const std::shared_ptr<Search>& search, bool cut);
  void start_over(const std::shared_ptr<Link>& link);
  void finish(const std::shared_ptr<Search>& search, Bound bound);
  // seeker_host.cpp
  Host& host_of(const std::string& name);
  int reach(const Host& host) const;
  void connect(Host& host, const std::shared_ptr<Search>& first);
  bool may_ask_early(const Link& link) const;
  void stands(const std::shared_ptr<Link>& link);
  void silent(const std::shared_ptr<Link>& link, bool patient);
  void on_frame(const std::shared_ptr<Link>& link, const wire::Frame& frame);
  const char* judge(const wire::HelloAck& ack, const wire::Id& nonce, const std::string& host,
                    wire::Answer& answer);
  void on_hello_ack(const std::shared_ptr<Link>& link, const wire::HelloAck& ack);
  static std::deque<std::shared_ptr<Search>> take_waiting(Host& host);
  static std::deque<std::shared_ptr<Search>> take_waiting(Host& host,
                                                          const std::shared_ptr<Link>& link);
  // Of the whole host, or of the process alone that was meant.
  enum class Why : uint8_t { process, refusal, silence };
  void no_link(Host& host, const std::shared_ptr<Link>& link, wire::Answer answer, Why host_wide,
               const char* why);
  void lost(const std::shared_ptr<Link>& link, const char* why);
  void give_up(const std::shared_ptr<Link>& link, const char* why);
  // seeker_channel.cpp
  void want_channel(const std::shared_ptr<Link>& link, const std::shared_ptr<Search>& search);
  void want_channel_later(const std::shared_ptr<Link>& link, const std::shared_ptr<Search>& search,
                          unsigned tries);
  std::shared_ptr<Companion> make_companion(const Link& link, const Search& search);
  // `packets`: where they reach the owner's end; null: none carry the companion.
  void on_companion_ack(const std::shared_ptr<Link>& link, const wire::CompanionAck& ack,
                        const wire::PacketAddress* packets);
  void on_packet_companion_ack(const std::shared_ptr<Link>& link,
                               const wire::PacketCompanionAck& ack);
  // seeker_away.cpp
  void go_away(const std::shared_ptr<Link>& link, const char* why);
  std::vector<const Asked*> bound_over(const std::shared_ptr<Link>& link) const;
  void come_back(const std::shared_ptr<Link>& link);
  void on_frame_away(const std::shared_ptr<Link>& link, const wire::Frame& frame);
  void try_later(const std::shared_ptr<Link>& link, bool refused);
  void stay_away(const std::shared_ptr<Link>& link, const char* why);
  void is_back(const std::shared_ptr<Link>& link);
  // seeker_proof.cpp
  void send_claim(const std::shared_ptr<Link>& link, uint64_t handle);
  void offer_if_safe(const std::shared_ptr<Link>& link, uint64_t handle);
  void offer_held(const std::shared_ptr<Link>& link);
  using Claims = std::unordered_map<uint64_t, std::unique_ptr<Claim>>;
  void renew(Claims::node_type claim);
  void on_slot(const std::shared_ptr<Link>& link, const wire::Slot& slot);
  void on_prove_ack(const std::shared_ptr<Link>& link, const wire::ProveAck& ack);
  bool fill(const Asked& asked, Claim& claim);
  void try_anew(const std::shared_ptr<Link>& link);

  // seeker_peers.cpp
  std::shared_ptr<Peer> meet(const std::string& host, const wire::Id& process, bool vouched);
  void note_refused(const std::string& host, const wire::HelloAck& ack);

  World& world_;
  Devices& devices_;
  const wire::Id process_;
  Peers& peers_;
  std::map<std::string, std::shared_ptr<Host>> hosts_;
  std::unordered_map<uint64_t, std::shared_ptr<Search>> searches_;
  std::unordered_map<uint64_t, Asked> bound_;
  Claims claims_;
  MetPaths met_;
  std::optional<KeyPair> identity_; // once it is needed
};

} // namespace adverb::link
