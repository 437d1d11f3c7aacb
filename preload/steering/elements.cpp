// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "steering/elements.h"
#include "memory/copy.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>

namespace adverb::steering {

bool Elements::gather(const Request& r, uint64_t from, std::byte* to, size_t bytes) {
  if ((r.wr.send_flags & IBV_SEND_INLINE) != 0) {
    memcpy(to, ring_.inlined(r) + from, bytes);
    return true;
  }
  for (int i = 0; i < r.wr.num_sge && bytes != 0; ++i) {
    const ibv_sge& sge = r.wr.sg_list[i];
    if (from >= sge.length) {
      from -= sge.length;
      continue;
    }
    registration::Span span;
    const size_t n = std::min<uint64_t>(bytes, sge.length - from);
    if (regions_.local(pd_, sge, 0, span) != 0 || !memory::read(to, span.data + from, n))
      return false;
    to += n;
    bytes -= n;
    from = 0;
  }
  return bytes == 0;
}

bool Elements::scatter(const Request& r, uint64_t from, std::span<const std::byte> bytes) {
  for (int i = 0; i < r.wr.num_sge && !bytes.empty(); ++i) {
    const ibv_sge& sge = r.wr.sg_list[i];
    if (from >= sge.length) {
      from -= sge.length;
      continue;
    }
    registration::Span span;
    const size_t n = std::min<uint64_t>(bytes.size(), sge.length - from);
    if (regions_.local(pd_, sge, IBV_ACCESS_LOCAL_WRITE, span) != 0 ||
        !memory::write_in_order(span.data + from, bytes.data(), n))
      return false;
    bytes = bytes.subspan(n);
    from = 0;
  }
  return bytes.empty();
}

bool Elements::writable(const Request& r) {
  return std::all_of(r.wr.sg_list, r.wr.sg_list + r.wr.num_sge, [this](const ibv_sge& sge) {
    registration::Span span;
    return sge.length == 0 || regions_.local(pd_, sge, IBV_ACCESS_LOCAL_WRITE, span) == 0;
  });
}

bool Elements::are_devices(const Request& r) const {
  const unsigned rights = reads_remote(r.wr.opcode) ? unsigned{IBV_ACCESS_LOCAL_WRITE} : 0U;
  return std::all_of(r.wr.sg_list, r.wr.sg_list + r.wr.num_sge, [&](const ibv_sge& sge) {
    registration::Span span;
    return sge.length == 0 ||
           (!regions_.is_virtual(sge.lkey) && regions_.local(pd_, sge, rights, span) == 0);
  });
}

bool Elements::may_copy_out(const Request& r) const {
  if ((r.wr.send_flags & IBV_SEND_INLINE) != 0 || reads_remote(r.wr.opcode))
    return false;
  // Which of those that a block has room for are copied the backend decides as it goes.
  const uint64_t copied_up_to = std::max<uint64_t>(copy_below_, registration::Staging::block_max);
  return std::any_of(r.wr.sg_list, r.wr.sg_list + r.wr.num_sge, [&](const ibv_sge& sge) {
    return sge.length != 0 && sge.length <= copied_up_to && regions_.is_virtual(sge.lkey);
  });
}

// Two regions may name the same bytes by other addresses.
uintptr_t Elements::place_of(const ibv_sge& sge) const {
  registration::Span span;
  return regions_.local(pd_, sge, 0, span) == 0 ? reinterpret_cast<uintptr_t>(span.data) : sge.addr;
}

bool Elements::overtakes(const Request& r) const {
  const auto is_to_be_copied_to = [&](const ibv_sge& sge) {
    const uintptr_t from = place_of(sge);
    for (uint64_t s = ring_.head(); s < std::min(copied_in_below_, r.seq); ++s) {
      const Request& before = ring_.at(s);
      if (!before.holding || !reads_remote(before.wr.opcode))
        continue;
      for (int i = 0; i < before.wr.num_sge; ++i) {
        const ibv_sge& to = before.wr.sg_list[i];
        if (!ring_.holds(before)[before.apart ? 0 : static_cast<size_t>(i)].block)
          continue;
        const uintptr_t at = place_of(to);
        if (from < at + to.length && at < from + sge.length)
          return true;
      }
    }
    return false;
  };
  for (int i = 0; i < r.wr.num_sge; ++i)
    if (r.wr.sg_list[i].length != 0 && !ring_.holds(r)[static_cast<size_t>(i)].block &&
        is_to_be_copied_to(r.wr.sg_list[i]))
      return true;
  return false;
}

bool Elements::land_apart(Request& r, ibv_sge& sge) {
  auto& hold = ring_.holds(r)[0];
  hold.life = nullptr;
  hold.block = staging_.take(r.length);
  if (!hold.block)
    return false;
  r.holding = r.apart = true;
  copied_in_below_ = apart_below_ = r.seq + 1;
  sge = {reinterpret_cast<uintptr_t>(hold.block.data), static_cast<uint32_t>(r.length),
         hold.block.lkey};
  return true;
}

std::span<std::byte> Elements::landing(const Request& r) const noexcept {
  assert(r.apart && r.holding);
  return {ring_.holds(r)[0].block.data, r.length};
}

void Elements::log_unbacked(uint32_t bytes) {
  if (world_.log.every("send-window", 10))
    world_.log.error("a window for a request of {} bytes cannot be registered; raise "
                     "RLIMIT_MEMLOCK, or send less at a time",
                     bytes);
}

int Elements::lend_to_device(Request& r, std::span<ibv_sge> room, uint32_t& used) {
  used = 0;
  if ((r.wr.send_flags & IBV_SEND_INLINE) != 0) {
    if (r.inlined != 0)
      room[used++] = {reinterpret_cast<uintptr_t>(ring_.inlined(r)), r.inlined, 0};
    return 0;
  }
  const bool incoming = reads_remote(r.wr.opcode);
  const unsigned rights = incoming ? unsigned{IBV_ACCESS_LOCAL_WRITE} : 0U;
  const uint64_t copy_below = r.in_place ? 0 : copy_below_;
  auto* hold = ring_.holds(r).data();
  uint32_t filled = 0;
  for (int i = 0; i < r.wr.num_sge; ++i, ++hold) {
    if (r.wr.sg_list[i].length == 0)
      continue; // its key is not looked at; a reserved one might be
    ibv_sge& sge = room[filled++] = r.wr.sg_list[i];
    const int rc = regions_.localize(pd_, staging_, copy_below, rights, !incoming, sge, *hold);
    r.holding |= static_cast<bool>(*hold);
    if (incoming && hold->block)
      copied_in_below_ = r.seq + 1;
    // EFAULT leaves the element as it is: the device meets the reserved key, and says so.
    if (rc == ENOMEM) [[unlikely]] {
      release(r);
      log_unbacked(sge.length);
      return ENOMEM;
    }
  }
  used = filled;
  return 0;
}

bool Elements::lend_few_bytes(Request& r, std::span<ibv_sge> room, uint32_t& used, bool& inlined) {
  constexpr uint32_t few = 8;
  used = 1;
  inlined = false;
  auto& hold = ring_.holds(r)[0];
  hold.block = staging_.take(few);
  hold.life = nullptr;
  if (hold.block) {
    r.holding = true;
    room[0] = {reinterpret_cast<uintptr_t>(hold.block.data), few, hold.block.lkey};
    return true;
  }
  if (r.inlined != 0) {
    inlined = true;
    room[0] = {reinterpret_cast<uintptr_t>(ring_.inlined(r)), std::min(r.inlined, few), 0};
    return true;
  }
  for (int i = 0; i < r.wr.num_sge; ++i) {
    if (r.wr.sg_list[i].length == 0)
      continue;
    ibv_sge& sge = room[0] = r.wr.sg_list[i];
    sge.length = std::min(sge.length, few);
    // No copying in, whatever it is: only the refusal counts.
    const unsigned rights = reads_remote(r.wr.opcode) ? unsigned{IBV_ACCESS_LOCAL_WRITE} : 0U;
    if (regions_.localize(pd_, staging_, 0, rights, false, sge, hold) != 0)
      return false;
    r.holding = static_cast<bool>(hold);
    return true;
  }
  return false;
}

bool Elements::deliver(Request& r) {
  bool all = true;
  for (int i = 0; i < r.wr.num_sge; ++i) {
    const auto& hold = ring_.holds(r)[static_cast<size_t>(i)];
    all &= !hold.block || regions_.deliver(pd_, hold, r.wr.sg_list[i].length);
  }
  return all;
}

void Elements::release(Request& r) noexcept {
  for (auto& hold : ring_.holds(r))
    if (hold)
      regions_.release(staging_, hold);
  r.holding = r.apart = false;
}

} // namespace adverb::steering
