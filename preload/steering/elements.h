// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The scatter/gather elements of a queue pair's requests, as the CPU reads and writes them and as
// the device is made able to.
#pragma once

#include "registration/regions.h"
#include "steering/opcode.h"
#include "steering/request.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace adverb {
class World;
}

namespace adverb::steering {

class Elements {
public:
  // `copy_below`: bytes below which an element is staged rather than given a window.
  Elements(World& world, registration::Regions& regions, registration::Staging& staging,
           const ibv_pd* pd, uint64_t copy_below, Ring& ring)
      : world_(world), regions_(regions), staging_(staging), pd_(pd), copy_below_(copy_below),
        ring_(ring) {}

  // Payload bytes [from, from + bytes) to `to`. False: an element's key, bounds or protection
  // domain is wrong, or the memory is gone.
  bool gather(const Request& r, uint64_t from, std::byte* to, size_t bytes);
  // The other way, the last bytes last. False also where an element may not be written.
  bool scatter(const Request& r, uint64_t from, std::span<const std::byte> bytes);
  // Whether data may be brought into every element.
  bool writable(const Request& r);

  // Whether the device would take every element as it stands.
  bool are_devices(const Request& r) const;

  // Whether lend_to_device() might copy some of the payload now, rather than have the device read
  // it later, unless `r` is to be in place.
  bool may_copy_out(const Request& r) const;
  // Whether what a READ or atomic brings may still have to be copied to where the program wants it,
  // which the device knows nothing of.
  bool copies_in() const noexcept { return copied_in_below_ > ring_.head(); }
  // Whether the device would bring something of `r`, which lend_to_device() has just been asked of,
  // to where what an earlier one brings is still to be copied: the later would be overwritten by
  // the earlier.
  bool overtakes(const Request& r) const;
  // Has all that the READ `r` brings land in one block of staging, and `sge` name that, so that its
  // way may look at it before the program can; the way takes it from there by scatter(). False: no
  // such block is to be had. release() gives it back.
  bool land_apart(Request& r, ibv_sge& sge);
  // That block, from when `r` is posted until release().
  std::span<std::byte> landing(const Request& r) const noexcept;
  // A READ with such a block may be in flight.
  bool lands_apart() const noexcept { return apart_below_ > ring_.head(); }
  // Fills `room` with elements that the device can use in place of the request's own, and notes in
  // the ring what stands in for them; release() gives that back. errno value: ENOMEM when an
  // element cannot be backed. `used`: elements filled; those without bytes are left out.
  int lend_to_device(Request& r, std::span<ibv_sge> room, uint32_t& used);
  // The same of one element of a request that has no place in the ring, whose bytes go out; `hold`
  // is then give_back()'s. errno: ENOMEM, else the device judges it as it is.
  int lend_out(ibv_sge& sge, registration::Hold& hold) {
    return regions_.localize(pd_, staging_, copy_below_, 0, true, sge, hold);
  }
  // The same of one that the device brings something to: in its place, with nothing to deliver.
  int lend_in(ibv_sge& sge, registration::Hold& hold) {
    return regions_.localize(pd_, staging_, 0, IBV_ACCESS_LOCAL_WRITE, false, sge, hold);
  }
  void give_back(registration::Hold& hold) noexcept { regions_.release(staging_, hold); }
  // The request's first 8 bytes at most, from a staging block or, when staging is used up, from
  // itself (`inlined`: from the ring, to be posted inline). False: neither could be had.
  bool lend_few_bytes(Request& r, std::span<ibv_sge> room, uint32_t& used, bool& inlined);
  // What the device put into staging goes where the program wants it. False: that is gone.
  bool deliver(Request& r);
  void release(Request& r) noexcept;

private:
  uintptr_t place_of(const ibv_sge& sge) const;
  void log_unbacked(uint32_t bytes);

  World& world_;
  registration::Regions& regions_;
  registration::Staging& staging_;
  const ibv_pd* pd_;
  const uint64_t copy_below_;
  Ring& ring_;
  uint64_t copied_in_below_ = 0; // no request from here on brings anything into staging
  uint64_t apart_below_ = 0;     // no request from here on lands apart
};

} // namespace adverb::steering
