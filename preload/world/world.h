// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Everything one adverb has only one of. It is handed to constructors and kept as a reference,
// never looked up, so two of them fit in one process and a test makes one in microseconds.
//
// A World opens, starts and reads nothing when it is made. Log file, shared page, policy, service
// thread, the real library's functions and the parts of the rooms above come at first use.
//
// The process's own World is made in interpose/process_world.cpp. It is named there, in the hooks,
// and in the handlers of fork and exit, which take no argument; nowhere else.
#pragma once

#include "observe/counters.h"
#include "observe/log.h"
#include "observe/page.h"
#include "policy/current.h"
#include "provider/provider.h"
#include "service/service.h"
#include "world/clock.h"
#include "world/entropy.h"
#include "world/part.h"

namespace adverb {

namespace link {
class Links;
}
namespace transfer {
class Targets;
}
namespace memory {
class Monitor;
}
namespace registration {
class Budgets;
class Recalls;
class StagedReceives;
class ViewSource;
} // namespace registration
namespace endpoint {
class Endpoints;
}
namespace model {
class Edge;
class Reload;
struct Objects;
} // namespace model

/// What a World is made of, and what a test or a simulation puts in its place. The references must
/// outlive the World; they are not used before its constructor has returned.
struct Seams {
  Clock& clock;
  Entropy& entropy;
  service::Service& service;
  const provider::Real* real = nullptr;   ///< null: the installed libibverbs
  const policy::Policy* policy = nullptr; ///< null: as environment and files say
  model::Edge* edge = nullptr;            ///< null: calls come to the model by no patched pointer
  observe::LogSink* log_sink = nullptr;   ///< null: stderr or a file, as Log::open() is told
  bool shared_page = true;                ///< false: its counts lie in no file for others to read
};

class World {
public:
  explicit World(const Seams& seams);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Clock& clock;
  Entropy& entropy;
  observe::Counters counters;
  observe::PeerTable peers;
  observe::Trace trace;
  observe::Log log;
  observe::SharedPage page;
  provider::Provider provider;
  service::Service& service;
  model::Edge* const edge;

  const policy::Policy& policy() { return policy_.get(); }
  policy::Current& policy_source() noexcept { return policy_; }

  /// In a fork child, where only this thread went on and any lock may be held by one that did not:
  /// counts from zero, says nothing yet. The parts are their rooms' to see to (part.h).
  void in_child() noexcept;

  // Of rooms above. Each function is defined by the room that owns the type and makes it there at
  // first use; who only counts and logs needs none of them at link time.
  link::Links& links();
  transfer::Targets& targets();
  registration::Budgets& budgets();
  registration::StagedReceives& staged_receives();
  memory::Monitor& monitor();
  registration::Recalls& recalls();
  registration::ViewSource& view_source();
  model::Objects& objects();
  model::Reload& reload();
  endpoint::Endpoints& endpoints();

  /// Where those rooms, the fork handlers and tests get at them.
  struct Parts {
    Part<link::Links> links;
    Part<transfer::Targets> targets;
    Part<registration::Budgets> budgets;
    Part<registration::StagedReceives> staged_receives;
    Part<memory::Monitor> monitor;
    Part<registration::Recalls> recalls;
    Part<registration::ViewSource> view_source;
    Part<model::Objects> objects;
    Part<model::Reload> reload;
    Part<endpoint::Endpoints> endpoints;
  } parts;

  /// Of the next endpoint of adverb.h. Numbers go on in a fork child, where the parent's name
  /// nothing.
  Atomic<uint64_t> next_endpoint{1};

private:
  /// The policy depends on no room: hits of its rules are counted through this.
  struct RuleHits final : policy::Hits {
    explicit RuleHits(observe::Counters& to) : counters(to) {}
    void hit(size_t slot) noexcept override { counters.count_rule(slot); }
    observe::Counters& counters;
  };

  RuleHits rule_hits_;
  policy::Current policy_;
};

} // namespace adverb
