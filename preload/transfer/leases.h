// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What this process has leased of a peer's memory over one channel, at the user's end: parts of
// regions under real keys, by which the device itself reaches them. All queue pairs of the channel
// use them.
//
// A request uses a lease from before it is posted until it is known to be complete. One that has
// been called back is used by no further request, and is back when the last of its uses has ended.
// Which bytes to ask for: those that a second request names within two terms (after Denning's
// working set; a scan touches each once). What no request has used for a term is given back. Where
// the owner has no more room, what is used less gives way to what is named more often, by a quarter
// at least, so that two that are alike do not take each other's place by turns.
//
// A view (registration/views.h) is a lease to READ that pins nothing at the owner's, and may show
// the pattern in the place of bytes. There is one for a large part of a region; none makes room for
// another. Where more than a fifth of the READs by one meet pages that are away it rests for a
// while, as the peer's CPU takes less time for these.
//
// Thread-safe; its lock is a leaf.
#pragma once

#include "registration/view_source.h"
#include "transfer/touches.h"
#include "world/sync.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace adverb::transfer {

struct Lease {
  uint32_t number = 0; // its owner's
  uint32_t key = 0;    // the virtual one
  uint32_t rkey = 0;   // the device's
  unsigned access = 0; // IBV_ACCESS_REMOTE_*
  uint64_t start = 0;  // as work requests name its bytes
  uint64_t bytes = 0;
  uint32_t heat = 0;    // its uses, counted as Touches counts
  uint64_t next = 0;    // behind the last one
  uint32_t uses = 0;    // under way
  bool touched = false; // in this term
  bool gone = false;    // called back, given back or lost: nobody new uses it
  size_t place = 0;     // among those that are not gone
  // A view:
  std::shared_ptr<const registration::Pattern> pattern = nullptr;
  uint32_t reads = 0; // of late
  uint32_t missed = 0;
  std::chrono::nanoseconds rests_until{};
  bool is_view() const noexcept { return pattern != nullptr; }
};

class Leases {
public:
  static constexpr std::chrono::milliseconds term{1000};
  static constexpr size_t leases_max = 4096;
  // Bytes of the longest request that a lease or a view is asked for: owners refuse to lease what
  // is much longer.
  static constexpr uint64_t longest = 8 << 20;
  using Time = std::chrono::nanoseconds; // of the World's clock
  // So long a view rests; so often one is asked for, as it takes the owner a while to build it; and
  // after a refusal, as the owner's module may come.
  static constexpr std::chrono::milliseconds rest{100};
  static constexpr std::chrono::milliseconds asked_each{5};
  static constexpr std::chrono::seconds refused_for{10};

  // Whether there may be any. Takes no lock.
  bool any() const noexcept { return live_.load(std::memory_order_relaxed) != 0; }
  // One that covers the bytes and gives the right, or null. use() counts a use, which the caller
  // ends by done(), once, when nothing can come of the request any more.
  bool covers(uint32_t key, uint64_t address, uint64_t length, unsigned right);
  Lease* use(uint32_t key, uint64_t address, uint64_t length, unsigned right);
  // A request that one covers goes another way all the same. False: none does.
  bool name(uint32_t key, uint64_t address, uint64_t length, unsigned right);
  void done(Lease& lease) noexcept;

  // The same of views, none of which is looked at above.
  bool any_views() const noexcept { return live_views_.load(std::memory_order_relaxed) != 0; }
  bool views(uint32_t key, uint64_t address, uint64_t length, Time now);
  Lease* use_view(uint32_t key, uint64_t address, uint64_t length, Time now);
  // What a READ by one met.
  void met(Lease& view, bool pages_away, Time now) noexcept;
  // The owner's device refuses what it is for. It is given back.
  void distrust(Lease& view) noexcept;
  // Its owner says that there may be views of it. True: one is to be asked for now.
  bool view_due(uint32_t key, Time now);
  // The owner has said so, of late.
  bool has_no_views(uint32_t key, Time now);
  void no_views(uint32_t key, Time now);

  // A request that no lease covers has been sent. True: its bytes are to be asked for.
  bool wanted(uint32_t key, uint64_t address, uint64_t length, Time now);
  // They are now. What the owner is to be told with it: how hot they are, and which lease of this
  // process's makes room for them, 0: none.
  struct Ask {
    uint32_t heat = 0;
    uint32_t instead_of = 0;
  };
  Ask ask(uint32_t key, uint64_t address, uint64_t length, Time now) noexcept;
  void no_room(uint32_t key, uint64_t address, Time now) noexcept; // for these, the owner says
  // False: there is no room for it, or it is there.
  bool add(const Lease& lease);
  void refused(uint32_t key);                    // the key's owner leases nothing of it
  size_t forget(std::span<const uint32_t> keys); // they have ended; how many leases have
  // Those of these numbers are called back; how many uses are under way. If there are any, `back`
  // is called when the last has ended, with whatever lock held but this one's.
  size_t recall(std::span<const uint32_t> numbers, std::function<void()> back);
  bool all_back() const; // no use is under way of any that is gone
  // The end of a term: the numbers of those that nobody used in it, which are gone.
  std::vector<uint32_t> unused();
  // Adds the numbers of those that have made room beside the one that the owner was told of. Takes
  // no lock where there are none.
  void take_given_up(std::vector<uint32_t>& to);
  void close(); // the link is lost

private:
  using List = std::list<Lease>;
  struct OfKey {
    std::vector<Lease*> all; // by start
    uint64_t longest = 0;    // bytes of one there has been
  };
  struct Index { // of those that are not gone
    std::unordered_map<uint32_t, OfKey> by_key;
    Lease* last_found = nullptr; // who chooses a way looks, and who takes it looks again
  };
  static Lease* find(Index& index, uint32_t key, uint64_t address, uint64_t length, unsigned right);
  Lease* find(uint32_t key, uint64_t address, uint64_t length, unsigned right) {
    return find(leased_, key, address, length, right);
  }
  Lease* find_view(uint32_t key, uint64_t address, uint64_t length, Time now);
  Index& index_of(const Lease& lease) noexcept { return lease.is_view() ? viewed_ : leased_; }
  static void count(Lease& lease, uint64_t address, uint64_t length) noexcept;
  void drop(Lease& lease) noexcept;
  void reap() noexcept;
  size_t uses_of_gone() const noexcept;
  bool is_full(Time now) noexcept;
  size_t colder(uint64_t bytes, uint32_t heat, std::span<Lease*> found) const noexcept;

  static constexpr size_t looked_at = 16; // leases, when one has to make room

  mutable QuickMutex lock_;
  Atomic<uint32_t> live_{0};
  Atomic<uint32_t> live_views_{0};
  List leases_;
  Index leased_;
  Index viewed_;
  std::vector<Lease*> standing_; // those that are not gone, and no views
  size_t hand_ = 0;              // of these, the first to be looked at next
  struct Asked {
    Time again{};         // not to be asked for before
    bool refused = false; // by then
  };
  std::unordered_map<uint32_t, Asked> view_asked_;
  std::unordered_map<uint32_t, bool> never_;
  Touches touches_;
  bool full_ = false;              // so the owner said
  uint32_t full_in_ = 0;           // in that term
  bool tries_ = false;             // whether there is room again, once a term
  std::vector<uint32_t> given_up_; // numbers
  Atomic<bool> any_given_up_{false};
  std::function<void()> back_; // while some are called back, and used
};

} // namespace adverb::transfer
