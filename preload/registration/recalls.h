// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What peers hold leases of is called back before its addresses come to mean other memory.
//
// A lease has pages, a region follows addresses. So the call that changes a mapping does not return
// before the leases there are back, or until the policy's recall_wait is over: what is under way
// then goes on with the pages it had, as in stock. Which addresses change is known only once the
// caller has been let go (memory/userfault.h), but in which stripe of them before: all leases of
// that are called back, and none is given there meanwhile. A lease lies in one stripe.
#pragma once

#include "memory/monitor.h"
#include "registration/interval_set.h"
#include "world/sync.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace adverb::registration {

// One who has given leases to a peer. The service's thread calls; no lock held.
class Lessor {
public:
  // All that are out in these stripes are called back.
  virtual void recall(memory::Stripes where) = 0;
  // Those there that were called back and are not back are counted out no longer.
  virtual void give_up(memory::Stripes where) = 0;
  // Of what is out, as much is called back as is more than its share.
  virtual void shed() = 0;
  // Views (views.h) that are good no longer are called back.
  virtual void views_changed() = 0;

protected:
  ~Lessor() = default;
};

// Which addresses of this process are leased, by whichever context. Any thread.
class LeasedRanges {
public:
  void add(uintptr_t from, uintptr_t to);
  void remove(uintptr_t from, uintptr_t to) noexcept;
  bool any(uintptr_t from, uint64_t bytes) const noexcept;

private:
  mutable Mutex lock_;
  Atomic<size_t> count_{0};
  IntervalSet ranges_;
};

// World::recalls(). Any thread, unless said otherwise.
class Recalls {
public:
  // They take no lock and ask for no memory. `wake`: has serve() called by the service, soon.
  // `back`: the last lease of a stripe is back while memory changes there. `wait`: sleeps until
  // `done`, asked after each `back`, for so long at most; what it says at last.
  struct Hooks {
    std::function<void()> wake;
    std::function<void()> back;
    std::function<bool(const std::function<bool()>& done, std::chrono::milliseconds)> wait;
  };
  explicit Recalls(Hooks hooks) : hooks_(std::move(hooks)) {}
  virtual ~Recalls() = default;
  Recalls(const Recalls&) = delete;
  Recalls& operator=(const Recalls&) = delete;

  LeasedRanges& leased() noexcept { return leased_; }
  const LeasedRanges& leased() const noexcept { return leased_; }
  // Which addresses have views (views.h), or are about to. Memory that changes calls none back.
  LeasedRanges& viewed() noexcept { return viewed_; }
  const LeasedRanges& viewed() const noexcept { return viewed_; }
  // What is lent for atomics (grants.h) cannot be called back: whether anything is.
  void lend() noexcept { lent_.fetch_add(1); }
  void end_lending() noexcept { lent_.fetch_sub(1); }
  bool lends() const noexcept { return lent_.load() != 0; }
  void join(std::weak_ptr<Lessor> lessor);
  // One more lease is out, which its lessor has listed; false: none may be now.
  bool out(unsigned stripe) noexcept;
  void back(unsigned stripe) noexcept;

  // Of how many lessors, that have a lease out each, the leasable bytes are.
  void began() noexcept { sharers_.fetch_add(1); }
  void ended() noexcept { sharers_.fetch_sub(1); }
  uint32_t sharers() const noexcept { return sharers_.load(); }
  // One of them has less than its share, and there is no room: others have more.
  void shed() noexcept;
  // Regions have changed, of which peers have views.
  void views_changed() noexcept;

  // Memory is about to change there, and has. No lock is taken, no memory asked for.
  void begin_change(memory::Stripes where) noexcept;
  bool all_back(memory::Stripes where) const noexcept;
  // Until they are, for so long at most. Not the service's thread.
  bool wait(memory::Stripes where, std::chrono::milliseconds most) noexcept {
    return hooks_.wait([this, where] { return all_back(where); }, most);
  }
  void overdue(memory::Stripes where) noexcept; // it goes on although they are not
  void end_change(memory::Stripes where) noexcept;

  // The service's.
  void serve();

private:
  Hooks hooks_;
  LeasedRanges leased_;
  LeasedRanges viewed_;
  Atomic<uint32_t> lent_{0};
  struct Stripe {
    Atomic<uint32_t> changing{0};
    Atomic<uint32_t> out{0}; // leases
  };
  template <typename Each> void each(memory::Stripes where, Each&& each) {
    for (unsigned i = 0; i < memory::stripe_count; ++i)
      if ((where >> i & 1) != 0)
        each(stripes_[i]);
  }

  std::array<Stripe, memory::stripe_count> stripes_;
  Atomic<memory::Stripes> recalled_{0}; // and not served yet; the same below
  Atomic<memory::Stripes> overdue_{0};
  Atomic<bool> shed_{false};
  Atomic<bool> views_changed_{false};
  Atomic<uint32_t> sharers_{0};
  Mutex lock_;
  std::vector<std::weak_ptr<Lessor>> lessors_;
};

} // namespace adverb::registration
