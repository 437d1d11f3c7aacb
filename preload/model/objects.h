// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Everything managed in one World, by the pointer the program holds.
#pragma once

#include "model/edge.h"
#include "model/table.h"
#include "world/sync.h"
#include "world/world.h"

#include <memory>

namespace adverb::model {

class Context;

// Lookups take a shared lock of one shard. A post on a managed object needs none: the edge knows
// its object (dispatch.h).
struct Objects {
  explicit Objects(World& world) : edge(world.edge != nullptr ? *world.edge : nothing_) {}

  // The managed context of a device context; null: not managed.
  std::shared_ptr<Context> managed(ibv_context* context) const;
  // Also one that passes new objects through: for what was made on it before.
  std::shared_ptr<Context> known(ibv_context* context) const { return contexts.share(context); }

  // In a fork child: queues of the parent are passed through from now on; a context on which it
  // had made none is managed anew, as daemons want that open the device before they fork.
  void in_child();

  Table<Context> contexts;
  Table<Cq> cqs;
  Table<Srq> srqs;
  Table<Qp> qps;
  Edge& edge;
  // Of who posts a receive and has to look at all queues for it (behind_staged.h); outermost.
  Mutex posting;

private:
  Edge nothing_;
};

} // namespace adverb::model

namespace adverb {

inline model::Objects& World::objects() {
  return parts.objects.get([this] { return std::make_shared<model::Objects>(*this); });
}

} // namespace adverb
