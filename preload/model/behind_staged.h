// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A receive for memory that an earlier message, in staging, may still have to be copied to.
//
// That message comes to its place when the program polls. One that the device puts in place by
// itself, posted after it, would have come before, and be overwritten. So the later one stands in
// staging as well, whatever its size; and as what a peer writes by a lease would then come before
// it, none has any there until then.
//
// What stands in staging comes after what the device puts in place. So where another queue has a
// receive that it places, a later one is placed as well, whatever its size; of one queue the
// messages come in that order anyway. Where both are there, neither would do: it is not posted.
//
// Who posts counts its receive first, as staged or as placed, and then looks at the counts of the
// other kind (registration/none.cpp): of two threads that post at the same time one sees the other,
// or both do, and look at the queues. That one thread does at a time, and until its receive is
// posted it counts as both, so that whoever comes meanwhile waits for it.
#pragma once

#include "model/context.h"
#include "model/no_leases.h"
#include "model/receive_queue.h"
#include "registration/backend.h"

#include <cerrno>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::model {

class BehindStaged {
public:
  // Finds out whether there is such a message: what is asked for while pages are counted may be
  // of a neighbour. What has come is put in its place. May wait for peers, a second at most. The
  // caller holds no lock.
  BehindStaged(const ReceiveQueue& queue, const ibv_recv_wr& wr);

  // It cannot be posted: errno.
  int error() const noexcept { return error_; }
  // Else: for ReceiveQueue::prepare(), while this lives.
  registration::Behind how() const noexcept {
    return calm_ ? registration::Behind::staged : registration::Behind::nobody;
  }

private:
  // Receives that are about to be posted, however.
  class Counted {
  public:
    Counted(World& world, const ReceiveQueue& queue, const ibv_recv_wr& wr);
    ~Counted();
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

    const std::vector<registration::ReceivePlace> places;

  private:
    registration::StagedReceives& receives_;
  };
  bool has_to_wait() const;

  World& world_;
  const std::unique_lock<Mutex> alone_; // Objects::posting
  const Counted mine_;
  int error_ = 0;
  std::optional<NoLeases> calm_;
};

// Prepares each receive of a list and posts it by `post`, which returns the provider's errno, both
// under the lock. Who posts to one queue by several threads says nothing of their order, so that
// what waits in between lets others go first.
template <typename Lock, typename Post>
int post_receives(ReceiveQueue& queue, Lock& lock, ibv_recv_wr* wr, ibv_recv_wr** bad,
                  Post&& post) {
  queue.bring_in(wr);
  std::unique_lock held(lock);
  const auto one = [&](registration::Behind behind) {
    ibv_recv_wr mine = *wr;
    int rc = queue.prepare(mine, behind);
    if (rc == 0 && (rc = post(&mine)) != 0)
      queue.take_back(mine);
    return rc;
  };
  for (; wr != nullptr; wr = wr->next) {
    int rc = 0;
    try {
      rc = one(registration::Behind::ask);
      if (rc == EBUSY) [[unlikely]] {
        held.unlock();
        const BehindStaged behind(queue, *wr);
        held.lock();
        rc = behind.error() != 0 ? behind.error() : one(behind.how());
      }
    } catch (const std::bad_alloc&) { // those before it are posted
      rc = ENOMEM;
    }
    if (rc != 0) {
      if (bad != nullptr)
        *bad = wr;
      return rc;
    }
  }
  return 0;
}

} // namespace adverb::model
