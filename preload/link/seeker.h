// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The initiator's side of links: finds the process behind a queue pair's peer, and a channel to it.
#pragma once

#include "link/device.h"
#include "link/links.h"
#include "link/wire.h"

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace adverb {
class World;
}

namespace adverb::link {

// seeker_parts.h
namespace seeking {
struct Link;
struct Host;
struct Search; // one bind under way
struct Away;
} // namespace seeking

// Service thread only.
class Seeker {
public:
  Seeker(World& world, Devices& devices, const wire::Id& process)
      : world_(world), devices_(devices), process_(process) {}

  // For a channel of `protocol`; null: only to know.
  void bind(const LocalQp& qp, std::shared_ptr<Protocol> protocol, std::function<void(Bound)> done);
  void cancel(uint64_t handle);
  void unbind(uint64_t handle);

private:
  using Link = seeking::Link;
  using Host = seeking::Host;
  using Search = seeking::Search;
  using Away = seeking::Away;
  struct Asked { // where a queue pair was bound, or asked for it, and whom it means
    std::weak_ptr<Link> link;
    uint32_t dqpn = 0;
    wire::Id dgid{};
  };

  Host& host_of(const std::string& name);
  void go_on(const std::shared_ptr<Search>& search);
  int reach(const Host& host) const;
  void connect(Host& host, const std::shared_ptr<Search>& first);
  void silent(const std::shared_ptr<Link>& link, bool patient);
  bool again(const std::shared_ptr<Search>& search);
  void on_frame(const std::shared_ptr<Link>& link, const wire::Frame& frame);
  const char* judge(const wire::HelloAck& ack, const wire::Id& nonce, const std::string& host,
                    wire::Answer& answer);
  void on_hello_ack(const std::shared_ptr<Link>& link, const wire::HelloAck& ack);
  void on_bind_ack(const std::shared_ptr<Link>& link, const wire::BindAck& ack);
  void on_companion_ack(const std::shared_ptr<Link>& link, const wire::CompanionAck& ack);
  void want_channel(const std::shared_ptr<Link>& link, const std::shared_ptr<Search>& search);
  void no_link(Host& host, const std::shared_ptr<Link>& link, wire::Answer answer, bool host_wide,
               std::chrono::milliseconds remember, const char* why);
  void lost(const std::shared_ptr<Link>& link, const char* why);
  void give_up(const std::shared_ptr<Link>& link, const char* why);
  void start_over(const std::shared_ptr<Link>& link);
  // seeker_away.cpp
  void go_away(const std::shared_ptr<Link>& link, const char* why);
  void come_back(const std::shared_ptr<Link>& link);
  void on_frame_away(const std::shared_ptr<Link>& link, const wire::Frame& frame);
  void try_later(const std::shared_ptr<Link>& link, bool refused);
  void stay_away(const std::shared_ptr<Link>& link, const char* why);
  void is_back(const std::shared_ptr<Link>& link);
  void finish(const std::shared_ptr<Search>& search, Bound bound);

  World& world_;
  Devices& devices_;
  const wire::Id process_;
  std::map<std::string, std::shared_ptr<Host>> hosts_;
  std::unordered_map<uint64_t, std::shared_ptr<Search>> searches_;
  std::unordered_map<uint64_t, Asked> bound_;
};

} // namespace adverb::link
