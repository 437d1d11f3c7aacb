// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Wakes a program that sleeps on its completion channel when adverb has a completion for it.
//
// Only the device can make the channel's descriptor readable, so a self-connected queue pair on the
// program's CQ carries a zero-length signaled WRITE. Its completion fires the program's arm as any
// other; polls filter it. A send completion does not fire a solicited-only arm, which is right:
// adverb's own completions are send completions too.
//
// Not thread-safe; the CQ's ready_lock_ guards it.
#pragma once

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
  bool is(const ibv_qp* qp) const noexcept { return qp != nullptr && qp == qp_; }
  uint32_t qpn() const noexcept { return qpn_; }

  // At most one is outstanding; a second call before landed() does nothing.
  void fire();
  void landed() noexcept { outstanding_ = false; }
  bool outstanding() const noexcept { return outstanding_; }

private:
  World& world_;
  ibv_qp* qp_ = nullptr;
  uint32_t qpn_ = 0;
  bool outstanding_ = false;
};

} // namespace adverb::model
