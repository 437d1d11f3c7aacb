// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Regions as the program sees them, and the parts of them that are really registered for a while.
//
// A region is either pinned (the provider's MR, real keys) or unpinned (no MR, one virtual key for
// both lkey and rkey). For an unpinned region the device gets windows: page-aligned parts clipped
// to the region, registered in its protection domain when an operation of the program's own queue
// pair needs them, shared by overlapping operations, kept while idle within the policy's budget.
// A grant is a window with remote rights that a peer was given.
//
// One Regions per program context; all functions are thread-safe.
#pragma once

#include "registration/keys.h"
#include "registration/staging.h"

#include <cstdint>
#include <list>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::registration {

struct Region;

struct Window {
  ibv_mr* mr = nullptr;
  uintptr_t start = 0; // addresses of the process
  uintptr_t end = 0;
  Region* region = nullptr; // null once the region is gone: nobody new may use the window
  uint32_t users = 0;
  uint64_t forced_bytes = 0; // beyond the budget, while in use
  bool receive = false;      // forced by a posted receive, not by a request under way
  std::list<Window*>::iterator idle;
};

struct Grant {
  std::shared_ptr<Key> key; // keeps the virtual key from being reused while the peer holds this
  ibv_mr* mr = nullptr;     // null once the region is gone
  Region* region = nullptr;
  uint64_t start = 0; // first address of it, as work requests use them
};

struct Region {
  ibv_mr mr{};            // what an unpinned region's program holds
  ibv_mr* real = nullptr; // the provider's MR of a pinned region
  ibv_pd* pd = nullptr;
  uintptr_t start = 0;      // address of the first byte in this process
  uint64_t iova = 0;        // address of the first byte in work requests
  uint64_t length = 0;      // bytes
  unsigned access = 0;      // IBV_ACCESS_*
  std::shared_ptr<Key> key; // unpinned only
  std::vector<std::unique_ptr<Window>> windows;
  std::vector<std::shared_ptr<Grant>> grants;
  std::shared_ptr<bool> alive = std::make_shared<bool>(true); // written under the maps' lock

  bool pinned() const noexcept { return real != nullptr; }
};

// One scatter/gather element as checked against its region.
struct Span {
  std::byte* data = nullptr; // address of the process
  bool pinned = false;       // the element's lkey is real
};

enum class Check { ok, bad_key, bad_range, bad_rights };

// What a posted element holds until its completion.
struct Hold {
  Window* window = nullptr;
  Block block;
  std::byte* program = nullptr;      // what the block stands for
  std::shared_ptr<const bool> alive; // false once the region of `program` is gone
  explicit operator bool() const noexcept { return window != nullptr || block; }
};

// A parent domain shares its protection domain's handle.
inline bool same_pd(const ibv_pd* a, const ibv_pd* b) noexcept {
  return a == b || (a->context == b->context && a->handle == b->handle);
}

class Regions {
public:
  explicit Regions(ibv_context* context) : keys_(context) {}

  // Registers [start, start+length) unpinned. The caller has checked mapping and rights.
  // nullptr and errno when no key can be reserved.
  ibv_mr* add_unpinned(ibv_pd* pd, void* start, size_t length, uint64_t iova, unsigned access);
  // Notes a region the provider has registered, so that its lkey can be checked by the CPU paths.
  void add_pinned(ibv_mr* real, uint64_t iova, unsigned access);

  bool is_unpinned(const ibv_mr* mr) const;
  // Unpinned: windows and grants die, later use of the key fails. The caller then waits until no
  // copy is in progress and calls forget(). Pinned: forgotten at once. False: not one of ours.
  std::unique_ptr<Region> remove(ibv_mr* mr);
  // ibv_rereg_mr on an unpinned region; `what` = IBV_REREG_MR_*. errno value.
  int change(ibv_mr* mr, int what, ibv_pd* pd, void* start, size_t length, unsigned access);

  // Local use: the element must lie in a region of `pd` with all `rights` (0 or LOCAL_WRITE).
  Check local(const ibv_pd* pd, const ibv_sge& sge, unsigned rights, Span& span) const;
  // Remote use of a virtual key: bytes [address, +length) with the given IBV_ACCESS_REMOTE_* right.
  Check remote(const ibv_pd* pd, uint32_t key, uint64_t address, uint64_t length, unsigned right,
               std::byte*& data) const;
  // Some unpinned region may be reached from outside.
  bool any_remote() const;
  bool is_virtual(uint32_t key) const;
  // A key that only ever names unpinned regions, whether one is registered under it now or not.
  bool is_reserved(uint32_t key) const { return keys_.owns(key); }
  void told_real(uint32_t key) { keys_.told_real(key); }

  // Makes an element usable by the device. Small ones are staged (`copy_in`: the bytes are copied
  // now), others get a window. On success `sge` is rewritten and `hold` says what to give back.
  // An element whose key or bounds are wrong is left as it is: its virtual key earns the device's
  // own error. errno value: 0, EFAULT (bytes could not be read; element left as it is), ENOMEM.
  int localize(const ibv_pd* pd, Staging& staging, uint64_t copy_below, unsigned rights,
               bool copy_in, bool receive, ibv_sge& sge, Hold& hold);
  void release(Staging& staging, Hold& hold) noexcept;
  // Copies the first `bytes` of a staged element to the program. False: its region is gone, or the
  // memory is. Deregistration waits for a copy that has begun.
  bool deliver(const Hold& hold, size_t bytes) const;

  std::shared_ptr<Grant> grant(uint32_t key, uint64_t address, uint64_t length, unsigned access);
  void revoke(const std::shared_ptr<Grant>& grant) noexcept;

  // In a fork child, where another thread of the parent may have held the locks.
  void in_child();

  // Before the program's context closes.
  void close();

private:
  Region* find_key(uint32_t lkey) const; // shared lock held
  Window* window_for(Region& region, uintptr_t start, size_t length, bool receive, int& why);
  void shrink_idle(uint64_t limit);
  void drop_parts(Region& region) noexcept;
  void destroy(Window& window) noexcept;

  mutable std::shared_mutex lock_; // the maps
  std::unordered_map<uint32_t, Region*> by_key_;
  std::unordered_map<const ibv_mr*, std::unique_ptr<Region>> by_mr_;
  std::mutex windows_lock_; // windows, grants and the idle list; taken inside lock_
  std::list<Window*> idle_; // least recently used first
  uint64_t window_bytes_ = 0;
  std::vector<std::unique_ptr<Window>> orphans_; // in use, region gone
  KeyPool keys_;
};

} // namespace adverb::registration
