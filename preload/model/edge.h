// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The one thing the model tells the room above it: which objects are managed, while it creates and
// destroys them, so that the edge can send their calls here. Nothing is asked back.
#pragma once

#include "provider/ops.h"

#include <infiniband/verbs.h>

namespace adverb::model {

class Cq;
class Qp;
class Srq;

/// Does nothing: what a test has, which calls the model itself.
class Edge {
public:
  virtual ~Edge() = default;

  /// A managed context was opened; false: it cannot be managed, and stays as the provider made it.
  virtual bool patch(ibv_context*) { return true; }
  /// It is about to be closed.
  virtual void unpatch(ibv_context*) {}

  /// One extended object; returns the provider's pointers.
  virtual void patch_qp_ex(ibv_qp_ex*) {}
  virtual provider::CqExOps patch_cq_ex(ibv_cq_ex*) { return {}; }

  /// Whose posts and polls go where, on a patched context; null: to the provider.
  virtual void add(ibv_qp*, Qp*) {}
  virtual void add(ibv_cq*, Cq*) {}
  virtual void add(ibv_srq*, Srq*) {}
  virtual void remove(ibv_qp*) {}
  virtual void remove(ibv_cq*) {}
  virtual void remove(ibv_srq*) {}
  /// In a fork child: nothing is managed any more.
  virtual void in_child() {}
};

} // namespace adverb::model
