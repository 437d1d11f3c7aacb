// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The owner's side of links: answers peers that ask for queue pairs of this process.
#pragma once

#include "link/connection.h"
#include "link/device.h"
#include "link/directory.h"
#include "link/protocols.h"

#include <memory>
#include <set>
#include <vector>

namespace adverb {
class World;
}

namespace adverb::link {

// Service thread only.
class Owner {
public:
  Owner(World& world, Directory& directory, Devices& devices, const Protocols& protocols,
        const wire::Id& process)
      : world_(world), directory_(directory), devices_(devices), protocols_(protocols),
        process_(process) {}

  void accept(int fd, const wire::Hello& hello);
  // A queue pair of this process has reached RTR: binds that waited for it are answered.
  void retry_waiting();

private:
  struct Link;
  void on_frame(const std::shared_ptr<Link>& link, const wire::Frame& frame);
  bool is_here(const wire::Bind& bind) const;
  void on_bind(const std::shared_ptr<Link>& link, const wire::Bind& bind);
  void on_companion(const std::shared_ptr<Link>& link, const wire::Companion& request);
  wire::Answer make_companion(const std::shared_ptr<Link>& link, const wire::Companion& request,
                              wire::CompanionAck& ack);
  void end(const std::shared_ptr<Link>& link, const char* why);

  World& world_;
  Directory& directory_;
  Devices& devices_;
  const Protocols& protocols_;
  const wire::Id process_;
  std::set<std::shared_ptr<Link>> links_;
  struct Waiting {
    std::weak_ptr<Link> link;
    wire::Bind bind;
    uint64_t timer;
  };
  std::vector<Waiting> waiting_;
};

} // namespace adverb::link
