// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the program has armed a CQ for, and the kick that fires the arm for a completion of
// adverb's own.
//
// What cannot be fired now, for want of a kick, is when there is one. What is left to a kick that
// is out already is looked at again when that is taken, for it may have landed before the arm.
#pragma once

#include "model/kick.h"

#include <cstdint>
#include <optional>

#include <infiniband/verbs.h>

namespace adverb {
class World;
}

namespace adverb::model {

// Not thread-safe; the CQ's ready_lock_ guards it, but for is_kick().
class Notifier {
public:
  explicit Notifier(World& world) : kick_(world) {}

  // Kick::open(). `path` is kept for reopen().
  int open(ibv_pd* pd, ibv_cq* cq, const ibv_ah_attr& path);
  void close() { kick_.close(); }
  bool is_open() const noexcept { return kick_.is_open(); }
  // The path of the last open(); null: there was none.
  const ibv_ah_attr* path() const noexcept { return path_ ? &*path_ : nullptr; }

  // The program's ibv_req_notify_cq.
  void arm(bool solicited) noexcept {
    (solicited ? armed_solicited_ : armed_) = true;
    missed_ = missed_error_ = false;
  }
  // There is a completion of adverb's own.
  void wake(bool error);
  // A kick is on its way, or in the CQ.
  bool kick_is_out() const noexcept { return kick_.outstanding(); }
  // True: the completion is the kick's, which is over. `more`: the program has others to poll.
  bool take(const ibv_wc& wc, bool more);
  // Any thread.
  bool is_kick(const ibv_qp* qp) const noexcept { return kick_.is(qp); }

private:
  Kick kick_;
  std::optional<ibv_ah_attr> path_;
  bool armed_ = false;           // for any completion
  bool armed_solicited_ = false; // for solicited ones and errors
  bool missed_ = false;          // a kick for the former was left to one that was out
  bool missed_error_ = false;    // for the latter
};

} // namespace adverb::model
