// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A region as the program sees it, and what posted elements and peers hold of one.
#pragma once

#include "registration/keys.h"
#include "registration/staged_receives.h"
#include "registration/staging.h"
#include "registration/view_source.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::registration {

class Backend;
struct Region;

struct Window;

// What a queue pair sends from, or brings to, again and again without asking: the window may be
// evicted when the report of the last request has been heard. Outlives its standing.
struct Standing {
  Standing(const Atomic<uint32_t>& heard_by, bool is_written)
      : written(is_written), heard(heard_by) {}
  const bool written;         // the device writes there
  Window* window = nullptr;   // under the lock of Windows; null: none
  Atomic<bool> stands{false}; // no request may go there any more, once it is false
  Atomic<uint32_t> until{0};  // number of the report
  const Atomic<uint32_t>& heard;
  uint32_t seen = 0; // `until` when somebody last wanted the window's place; under the lock

  bool in_use() const noexcept { return static_cast<int32_t>(until.load() - heard.load()) > 0; }
};

// A part of a region that is registered for the program's own operations (windows.h).
struct Window {
  ibv_mr* mr = nullptr; // null once the region is gone
  uintptr_t start = 0;  // addresses of the process
  uintptr_t end = 0;
  uint64_t charged = 0; // bytes that it keeps in place: those of huge pages that it is part of, too
  uint64_t shift = 0;   // of the addresses work requests use
  bool writable = false;    // by the device
  bool watched = false;     // changes of its addresses are heard of: it may outlive its request
  Region* region = nullptr; // null once the region is gone, or its addresses mean other memory:
                            // nobody new may use the window
  uint32_t users = 0;
  // Of the users it has and those before them, back to when it had none:
  uintptr_t used_from = 0;
  uintptr_t used_to = 0;
  bool written = false;      // one of them has the device write
  uint64_t forced_bytes = 0; // beyond the budget, while in use
  bool receive = false;      // the first of them is a posted receive, not a request under way
  std::vector<Standing*> standings;
  std::list<Window*>::iterator at;
};

struct Grant;

// Who lends parts of regions to peers. Thread-safe; nothing of Regions is locked.
class Lender {
public:
  Lender() = default;
  virtual ~Lender() = default;
  Lender(const Lender&) = delete;
  Lender& operator=(const Lender&) = delete;

  // Whether its addresses still mean the pages that it has. A lessor asks when its lease is out
  // (recalls.h), so that what changed before is known and what changes later calls it back.
  virtual bool is_good(const Grant& grant) noexcept = 0;
  // Whether it has ended, as its region has.
  virtual bool is_over(const Grant& grant) noexcept = 0;
  // Nothing happens if the region has gone before.
  virtual void take_back(const std::shared_ptr<Grant>& grant) noexcept = 0;
};

struct ImageOfRegion;

// What a peer was lent: bytes of a region under a real key (grants.h, views.h).
struct Grant {
  std::shared_ptr<Lender> by; // who has lent it, and takes it back
  std::shared_ptr<Key> key;   // keeps the virtual key from being reused while the peer holds this
  // Under the lock of Grants: null once the region is gone, which may be while the peer is told.
  ibv_mr* mr = nullptr;
  Region* region = nullptr;
  uintptr_t from = 0; // first address of it, as the process has it
  // What the peer is told.
  uint32_t rkey = 0;
  uint64_t start = 0; // first address of it, as work requests use them
  uint64_t bytes = 0;
  unsigned access = 0;  // IBV_ACCESS_REMOTE_*
  uint64_t charged = 0; // leased: bytes that are kept in place for it
  bool leased = false;  // changes of its addresses are heard of
  uint64_t told = 0;    // Monitor::told() when its pages were looked at
  // A view: nothing is kept in place for it, and its addresses may come to mean anything.
  std::shared_ptr<const Pattern> pattern;
  std::shared_ptr<ImageOfRegion> image; // under the lock of Views; null: it was taken back
  bool is_view() const noexcept { return pattern != nullptr; }
};

// The slot of a region, which outlives it: who posted an element of one finds by it what has become
// of that. Written under the lock of Regions.
struct Life {
  uint64_t number = 0; // another one with each region that ends
  Region* region = nullptr;
};

// A backend may derive from it. What is written after the region was added is written under the
// lock of Regions, which whoever comes by a key or an MR holds; windows and grants have their own.
struct Region {
  Region() = default;
  virtual ~Region() = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  Backend* backend = nullptr;
  ibv_mr* mr = nullptr; // the provider's, or one that this region has made
  ibv_pd* pd = nullptr;
  uintptr_t start = 0;      // address of the first byte in this process
  uint64_t iova = 0;        // address of the first byte in work requests
  uint64_t length = 0;      // bytes
  unsigned access = 0;      // IBV_ACCESS_*
  std::shared_ptr<Key> key; // a virtual one; null where the program has the provider's
  // Another name of a region that has the provider's key: under it this process's CPU serves peers.
  // Null until one has asked for it.
  std::shared_ptr<Key> served;
  Life* life = nullptr;
  Atomic<uint64_t> overlaps{0}; // overlaps.h
  // ibv_rereg_mr gave the memory to another backend, and this is the region it was before: the MR
  // that the program holds is still that one's.
  std::unique_ptr<Region> former;
  std::list<std::unique_ptr<Window>> windows;
  std::vector<std::shared_ptr<Grant>> grants;
  std::shared_ptr<ImageOfRegion> image; // under the lock of Views
  // What peers may still have of before it changed; under the lock of Views.
  std::vector<std::shared_ptr<ImageOfRegion>> former_images;
  Atomic<bool> viewed{false};        // some of it may be read by views: there is an image
  mutable Atomic<uintptr_t> page{0}; // bytes of a page of its mapping; 0: nobody has asked yet

  // The process's address of one that work requests use.
  std::byte* at(uint64_t address) const noexcept {
    return reinterpret_cast<std::byte*>(start + (address - iova));
  }
  // What is to be added to an address of the process.
  uint64_t shift() const noexcept { return iova - start; }
  // What the program holds.
  ibv_mr* programs() noexcept { return former ? former->programs() : mr; }
};

// What a posted element holds until its completion.
struct Hold {
  Backend* backend = nullptr; // that made the element usable
  Window* window = nullptr;
  Block block;
  // Of a block whose bytes are to be delivered: where, and of which region, which may have ended or
  // changed by then.
  uint64_t address = 0; // as work requests use them
  const Life* life = nullptr;
  uint64_t number = 0;
  ReceivePlace place; // of a posted receive
  // The bytes come to the block, and are to be copied from there to their place.
  bool staged_receive() const noexcept { return block && place.bytes != 0; }
  explicit operator bool() const noexcept { return backend != nullptr || block; }
};

// A parent domain shares its protection domain's handle.
inline bool same_pd(const ibv_pd* a, const ibv_pd* b) noexcept {
  return a == b || (a->context == b->context && a->handle == b->handle);
}

// [address, +length) lies in the region by the addresses work requests use; no wrap.
inline bool inside(const Region& r, uint64_t address, uint64_t length) noexcept {
  return address >= r.iova && length <= r.length && address - r.iova <= r.length - length;
}

// What a NIC checks before it touches a byte: ENOENT another protection domain's, ERANGE beyond
// the region, EACCES without all of `rights`.
inline int check(const Region& r, const ibv_pd* pd, uint64_t address, uint64_t length,
                 unsigned rights) noexcept {
  if (!same_pd(r.pd, pd))
    return ENOENT;
  if (!inside(r, address, length))
    return ERANGE;
  return (r.access & rights) == rights ? 0 : EACCES;
}

// A part of a region's memory that was registered for a while, and for what.
struct Part {
  const ibv_pd* pd;
  uintptr_t start; // addresses of the process
  uintptr_t end;
  uint64_t shift;
  unsigned rights;
};

// Whether the device may go on using it now that the region is what it is.
inline bool still_lies_in(const Region& r, const Part& part) noexcept {
  return part.shift == r.shift() &&
         check(r, part.pd, part.start + part.shift, part.end - part.start, part.rights) == 0;
}

} // namespace adverb::registration
