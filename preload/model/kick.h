// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Wakes a program that sleeps on its completion channel when adverb has a completion for it.
//
// Only the device can make the channel's descriptor readable, so a self-connected queue pair on the
// program's CQ carries a zero-length signaled WRITE. Its completion fires the program's arm as any
// other; polls filter it. An arm for solicited completions only is fired by errors, too, but by no
// send completion of a WRITE: for an error of adverb's own the queue pair sends itself a solicited
// message.
//
// Not thread-safe; the CQ's ready_lock_ guards it.
#pragma once

#include "world/sync.h"

#include <cstdint>

#include <infiniband/verbs.h>

namespace adverb {
class World;
}

namespace adverb::model {

class Kick {
public:
  explicit Kick(World& world) : world_(world) {}
  // `pd` in the program's context; `ah` names port and GID index of a queue pair of the program.
  // errno value.
  int open(ibv_pd* pd, ibv_cq* cq, const ibv_ah_attr& ah);
  void close();
  bool is_open() const noexcept { return qp_ != nullptr; }
  // Any thread: until the provider has destroyed it, which waits for its events.
  bool is(const ibv_qp* qp) const noexcept { return qp != nullptr && qp == qp_; }
  uint32_t qpn() const noexcept { return qpn_; }

  // A send completion, or a solicited message's two. At most one of each kind is outstanding; a
  // second call before its completions have landed() does nothing. False: none was sent.
  enum class Kind : uint8_t { plain, solicited };
  static constexpr int entries_max = 3; // in the CQ
  bool fire(Kind kind);
  void landed(const ibv_wc& wc) noexcept;
  bool outstanding() const noexcept { return outstanding_[0] + outstanding_[1] != 0; }

private:
  World& world_;
  Atomic<ibv_qp*> qp_{nullptr};
  uint32_t qpn_ = 0;
  int outstanding_[2] = {}; // completions, by kind
};

} // namespace adverb::model
