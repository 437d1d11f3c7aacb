// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// All regions of a program context, found by key and by MR. What is done with one its backend does
// (registration/backend.h).
//
// One Regions per program context; all functions are thread-safe. int is an errno, 0 for good.
#pragma once

#include "registration/backend.h"
#include "registration/copied.h"
#include "registration/grants.h"
#include "registration/key_filter.h"
#include "registration/keys.h"
#include "registration/overlaps.h"
#include "registration/views.h"
#include "registration/windows.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::registration {

// One scatter/gather element as checked against its region.
struct Span {
  std::byte* data = nullptr; // address of the process
};

// Bytes that may be read for elements under a key, as long as `as_of` is Regions::changes().
struct Readable {
  uint32_t key = 0;
  uint64_t as_of = 0;   // 0: never
  uint64_t address = 0; // first one, as work requests use them
  uint64_t length = 0;
  std::byte* data = nullptr; // address of the process
};

// The outcome of a verb on a region that is there.
struct Ended {
  bool known = false; // false: not one of ours, nothing was done
  int rc = 0;         // what the verb returns; errno is set where it is to be
  // Virtual, and what it meant has ended; null: it was the provider's own. Peers' requests that
  // were checked before may still be copying. Dropped with the last holder, and then free for
  // another region.
  std::shared_ptr<Key> key;
  std::unique_ptr<Region>
      region; // gone from every list; to be kept until those have come to an end
};

class Regions {
public:
  Regions(World& world, ibv_context* context);

  // This context's backend of a row of policy::backends.
  Backend& backend(const policy::BackendTraits& traits) const noexcept;

  // The program is about to make such a queue pair: each backend hears of it (Backend::meet()).
  void meet(ibv_context* context, ibv_qp_type type) const;

  // Has the backend make the region, and lists it.
  Refusal add(Backend& backend, const Wanted& wanted, ibv_mr*& mr);
  // ibv_dereg_mr: later use of the key fails, and what the region had registered has ended.
  Ended remove(ibv_mr* mr);
  // ibv_rereg_mr. The program's MR stays the same, its keys may not; `region` is null. Of a region
  // with a virtual key `choose` says whose it is to be as it would become: an errno if nobody may
  // take it.
  using Choose = std::function<int(const Wanted& wanted, Backend*& backend)>;
  Ended change(ibv_mr* mr, const Change& what, const Choose& choose);

  // Local use: the element must lie in a region of `pd` with all `rights` (0 or LOCAL_WRITE).
  // ENOENT no such key in that domain, ERANGE, EACCES.
  [[nodiscard]] int local(const ibv_pd* pd, const ibv_sge& sge, unsigned rights, Span& span) const {
    return local(pd, sge, rights, span, Shared(lock_));
  }
  // Copies to the front of an element that may be written. False: it may not, or its memory is
  // gone. Deregistration waits for a copy that has begun.
  [[nodiscard]] bool place(const ibv_pd* pd, const ibv_sge& sge,
                           std::span<const std::byte> bytes) const noexcept;
  // What elements under the virtual key may be copied from, for a queue pair of `pd`; nothing where
  // its backend does not copy. To be asked again when changes() is another.
  [[nodiscard]] Readable readable(const ibv_pd* pd, uint32_t key) const;
  // Keeps the window, which the caller is using for an element under that key, for a queue pair of
  // `pd`: what may be sent from it, and under which key. Nothing: it is not kept.
  [[nodiscard]] Readable stand(const ibv_pd* pd, uint32_t key, Window& window, Standing& standing,
                               uint32_t& lkey) noexcept;
  void end_standing(Standing& standing) noexcept { windows_.end_standing(standing); }
  // Another number after each region that ended or changed. Takes no lock.
  uint64_t changes() const noexcept { return changes_.load(std::memory_order_acquire); }
  // The pages of those elements that are of unpinned regions are looked at (memory::bring_in()),
  // for whoever uses them later holds locks. To be called without any: they may be slow to come.
  // Those of a window are there.
  void bring_in(const ibv_pd* pd, std::span<const ibv_sge> elements) noexcept;
  // The key under which this process's CPU serves peers' requests on the region that the provider
  // knows by `key`, for queue pairs of `pd`; it ends with the region, or when that is changed. 0:
  // none, for there is no such region, it lets no peer in, or no key is to be had.
  [[nodiscard]] uint32_t serve(const ibv_pd* pd, uint32_t key);
  // Remote use of a virtual key, or of one that serve() gave: bytes [address, +length) with the
  // given IBV_ACCESS_REMOTE_* right.
  [[nodiscard]] int remote(const ibv_pd* pd, uint32_t key, uint64_t address, uint64_t length,
                           unsigned right, std::byte*& data) const;
  // Whether messages that stand in staging, of whatever queue, may be for those bytes.
  bool awaits_copy(uint32_t key, uint64_t address, uint64_t length) const;
  // Some region lives in the domain that the provider knows nothing of.
  bool any_virtual(const ibv_pd* pd) const;
  // The domain is about to be given back to the provider, and none lives in it.
  void ends(const ibv_pd* pd) noexcept;
  // In any domain.
  bool any_virtual() const noexcept { return virtual_keys_.load() != 0; }
  // Some region may be reached from outside with a virtual key.
  bool any_remote() const;
  // A region lives under the key, and it is not the provider's.
  bool is_virtual(uint32_t key) const;
  // False: it does not. Takes no lock, so that no post of a pinned region does.
  bool may_be_virtual(uint32_t key) const noexcept { return filter_.may_hold(key); }
  // Whether there is any such region. Takes no lock, either.
  bool has_virtual() const noexcept { return filter_.holds_any(); }
  // Some region lives under the key, as far as regions are made by this library; of any domain, or
  // of that one.
  bool exists(uint32_t key) const;
  bool exists(const ibv_pd* pd, uint32_t key) const;
  // A key that only ever names such regions, whether one lives under it now or not.
  bool is_reserved(uint32_t key) const { return keys_.owns(key); }
  // For a peer, who keeps that a key is not, and who asks by a queue pair of `pd`: of the keys of
  // other domains it is not to learn more than that the device refuses them.
  bool is_virtual_to_peer(const ibv_pd* pd, uint32_t key);
  // Of a key that names nothing there is nothing to keep, whoever asks for how many: who uses it
  // meets an error, and forgets what was told (transfer::Verdicts).
  void told_real(uint32_t key) {
    if (exists(key))
      keys_.told_real(key);
  }
  // Keeps a virtual key, or one that serve() gave, from being given to another region; null if none
  // lives under it. May outlive this.
  std::shared_ptr<Key> key_token(uint32_t key) const;

  // Makes an element usable by the device. On success `sge` is rewritten and `hold` says what to
  // give back. `copy_in`: the bytes go out, and are read now if they are copied. An element whose
  // key or bounds are wrong is left as it is: its virtual key earns the device's own error.
  // `copy_below`: Use's. errno: 0, EFAULT (bytes could not be read; element left as it is), ENOMEM.
  [[nodiscard]] int localize(const ibv_pd* pd, Staging& staging, uint64_t copy_below,
                             unsigned rights, bool copy_in, ibv_sge& sge, Hold& hold) {
    if (!may_be_virtual(sge.lkey))
      return 0;
    return localize_virtual({pd, staging, copy_below, rights, copy_in, false}, sge, hold);
  }
  // The same of an element of a receive that is being posted to that queue
  // (PlacedReceives::number()). EBUSY: see Behind.
  [[nodiscard]] int localize_receive(const ibv_pd* pd, Staging& staging, uint64_t copy_below,
                                     Behind behind, uint32_t queue, ibv_sge& sge, Hold& hold) {
    if (!may_be_virtual(sge.lkey))
      return 0;
    return localize_virtual(
        {pd, staging, copy_below, IBV_ACCESS_LOCAL_WRITE, false, true, behind, queue}, sge, hold);
  }
  void release(Staging& staging, Hold& hold) noexcept;
  // Copies the first `bytes` of a staged element of a queue pair of `pd` to the program, by what
  // its region is now. False: that or its memory is gone, or they may not go there any more.
  // Deregistration waits for a copy that has begun.
  bool deliver(const ibv_pd* pd, const Hold& hold, size_t bytes) const noexcept;

  // Lends bytes of the region under a virtual key. ENOENT no such key, ERANGE, EOPNOTSUPP its
  // backend does not lend, else that of the registration.
  [[nodiscard]] int grant(uint32_t key, uint64_t address, uint64_t length, unsigned access,
                          std::shared_ptr<Grant>& grant);
  static void revoke(const std::shared_ptr<Grant>& grant) noexcept { grant->by->take_back(grant); }
  // The same for as long as the peer uses it (Backend::lease()).
  [[nodiscard]] int lease(uint32_t key, uint64_t address, uint64_t length,
                          std::shared_ptr<Grant>& grant);
  // A view that has those bytes (Backend::view()).
  [[nodiscard]] int view(uint32_t key, uint64_t address, uint64_t length,
                         std::shared_ptr<Grant>& grant);
  // Whether there may be any of that region.
  [[nodiscard]] bool has_views(uint32_t key) const;
  // A peer's READ of them was served by the CPU (Backend::served()).
  void served(uint32_t key, uint64_t address, uint64_t length) noexcept;
  // Which memory that would be; empty: none may be leased.
  [[nodiscard]] std::span<std::byte> lease_bounds(uint32_t key, uint64_t address,
                                                  uint64_t length) const;

  // From now on what there is more of than is always copied is copied until that has cost what a
  // window would have.
  void copy_up_to(uint64_t critical_size) noexcept { copied_.set(critical_size); }

  // In a fork child, where another thread of the parent may have held the locks.
  void in_child();

  // Before the program's context closes.
  void close();

private:
  using Shared = std::shared_lock<SharedMutex>; // of lock_: shown to what needs it held
  using Unique = std::unique_lock<SharedMutex>;

  int local(const ibv_pd* pd, const ibv_sge& sge, unsigned rights, Span& span,
            const Shared& held) const;
  Region* find_key(uint32_t key, const Shared& held) const;
  Region* find_virtual(uint32_t key, const Shared& held) const;
  Region* find_for_peer(uint32_t key, const Shared& held) const;
  std::shared_ptr<Key> end_served(Region& region, const Unique& held);
  bool has_window(uint32_t key, const std::byte* data, uint64_t length) noexcept;
  int localize_virtual(const Use& use, ibv_sge& sge, Hold& hold);
  // Takes the region, or throws and has done nothing.
  void list(std::unique_ptr<Region>& region, const Unique& held);
  std::unique_ptr<Region> unlist(ibv_mr* mr, const Unique& held);
  int change(Region& region, const Change& what, const Choose& choose);
  int move(Region& region, const Wanted& wanted, Backend& to);
  static void tell_former(Region& region);

  World& world_;
  mutable SharedMutex lock_; // the maps, and what is written of a region after it was added
  KeyPool keys_;
  Windows windows_;
  Copied copied_;
  const std::shared_ptr<Grants> grants_;
  const std::shared_ptr<Views> views_;
  std::vector<std::unique_ptr<Backend>> backends_; // row by row those of policy::backends
  KeyFilter filter_;       // the virtual ones of the listed regions; written under the lock
  std::deque<Life> lives_; // one for each region there is, and spare ones
  std::vector<Life*> spare_lives_;
  Atomic<size_t> virtual_keys_{0}; // of the listed regions; written under the lock
  Atomic<uint64_t> changes_{1};    // the same
  Overlaps overlaps_;
  std::unordered_map<uint32_t, Region*> by_key_;
  std::unordered_map<uint32_t, Region*> by_served_;
  std::unordered_map<const ibv_mr*, std::unique_ptr<Region>> by_mr_;
};

} // namespace adverb::registration
