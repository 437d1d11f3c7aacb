// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A posted work request, from post to completion, and the ring that keeps a queue pair's in posting
// order.
//
// A request's stage says where it is, its disposition what carries it. The table in stages.h says
// which of them may follow which. The ring owns what the program may take back as soon as its post
// returns: the list of elements and inline bytes.
//
// Not thread-safe: the queue pair's lock guards it.
#pragma once

#include "registration/regions.h"
#include "steering/completion.h"
#include "steering/stages.h"

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::steering {

class Way;
class LaneOwner;
struct WayRow;

// Why a request ends in error and takes the queue pair with it. Whose fault the first two are the
// device says itself; `unbacked`: what it needs here cannot be had; `unanswered`: the peer's CPU
// may have carried it out or not.
enum class Fault : uint8_t { peer, own_elements, unbacked, unanswered };

// What carries a request whose key nothing was known of when it was chosen for.
enum class Unasked : uint8_t {
  no,
  sent,  // it went to the peer's responder, which says what the key names when it answers
  device // the responder never answered for such a key, or refused it for a served one: the device
         // is given it whole, and judges
};

#ifdef ADVERB_WATCH_EVENTS
// Of a test that wants to know which rows of the table it has walked.
void watch_event(Stage stage, Disposition disposition, Event event) noexcept;
#endif

struct Request {
  uint64_t seq = 0; // its place in the queue pair's posts
  Stage stage = Stage::queued;
  Disposition disposition = Disposition::none;
  Fault fault = Fault::peer; // Disposition::replay
  bool signaled = false;
  bool holding = false; // some element stands in staging or a window
  // The device has it as the program posted it. Nobody owns it, and of `wr` only what its
  // completion needs is here: wr_id and opcode.
  bool direct = false;
  uint32_t run = 0;     // of the lane that carries it: that answers must name; 0: they do not count
  ibv_send_wr wr{};     // the program's; sg_list points into the ring
  uint64_t length = 0;  // bytes of all elements
  uint32_t inlined = 0; // bytes of it that the ring keeps
  Unasked unasked = Unasked::no;
  // A READ by a view. What it brings lands in one block of staging, its first hold; and what of
  // that is not what is there is being asked for.
  bool apart = false;
  bool missed = false;
  bool stale = false;          // posted behind one that missed: it is executed again
  bool no_view = false;        // it goes by none
  bool ahead = false;          // a SEND, whose bytes go ahead of it
  bool in_place = false;       // no element is to be copied: the device reads or writes it itself
  uint32_t epoch = 0;          // of what was known when the way was chosen
  uint32_t served = 0;         // key by which the peer's CPU is asked; 0: the request's own
  const WayRow* row = nullptr; // Disposition::way
  Way* way = nullptr;
  LaneOwner* owner = nullptr; // who hears what becomes of it; the lane's to set
  // Zero when a way is chosen. Of the way that carries it:
  uint64_t sent = 0;   // bytes handed to its lane
  bool flawed = false; // its own elements are, and some of it is still in the lane
  // Of the lane that carries it:
  uint32_t parts = 0; // unanswered
  bool asked = false; // something beside its data is, and unanswered
  // Stage::done. What a way or a failure fills in goes into an empty one; of a request that the
  // device has not reported by itself only the status is good.
  Completion result;

  // As it is when it is appended.
  void start(uint64_t at, const ibv_send_wr& posted) noexcept {
    seq = at;
    wr = posted;
    wr.next = nullptr;
    length = sent = 0;
    inlined = epoch = served = parts = run = 0;
    signaled = holding = direct = in_place = flawed = asked = false;
    apart = missed = stale = no_view = ahead = false;
    stage = Stage::queued;
    disposition = Disposition::none;
    unasked = Unasked::no;
    row = nullptr;
    way = nullptr;
    owner = nullptr;
    result.wc.status = IBV_WC_SUCCESS;
  }

  // One that goes to the device as it stands begins there.
  void start_direct(uint64_t at, const ibv_send_wr& posted, bool reports) noexcept {
    seq = at;
    stage = Stage::posted;
    disposition = Disposition::way;
    signaled = reports;
    holding = false;
    direct = true;
    apart = missed = stale = false;
    run = 0;
    wr.wr_id = posted.wr_id;
    wr.opcode = posted.opcode;
    result.wc.status = IBV_WC_SUCCESS;
  }

  // Moves on by the table; what the table does not have is a mistake of ours.
  void become(Event event) noexcept {
    const Place to = next(stage, disposition, event);
    assert(to.legal());
#ifdef ADVERB_WATCH_EVENTS
    watch_event(stage, disposition, event);
#endif
    stage = to.stage;
    disposition = to.disposition;
  }
  bool may(Event event) const noexcept { return next(stage, disposition, event).legal(); }
};

class Ring {
public:
  // Requests are numbered from `first` on.
  Ring(const ibv_qp_cap& cap, bool all_signaled, uint64_t first = 0, bool connected = true);

  // A copy of `wr` behind all others, which may move them. errno value: ENOMEM full, EINVAL
  // malformed.
  int append(const ibv_send_wr& wr);
  // The place of one more, whatever it is; the caller starts it. Null where append() may have to do
  // more than that.
  Request* push() noexcept { return tail_ - head_ != room_ ? &requests_[slot(tail_++)] : nullptr; }
  // Takes back those from `seq` on.
  void truncate(uint64_t seq) noexcept { tail_ = seq; }
  void pop() noexcept { ++head_; }
  void clear() noexcept { head_ = tail_; }

  uint64_t head() const noexcept { return head_; } // oldest that has not left
  uint64_t tail() const noexcept { return tail_; } // of the next append
  bool empty() const noexcept { return head_ == tail_; }
  bool holds_seq(uint64_t seq) const noexcept { return seq >= head_ && seq < tail_; }
  Request& at(uint64_t seq) noexcept { return requests_[slot(seq)]; }
  size_t capacity() const noexcept { return capacity_; }

  uint32_t sges() const noexcept { return sges_; } // elements of one request, at most
  uint32_t inline_most() const noexcept { return inline_bytes_; } // bytes of one
  bool all_signaled() const noexcept { return all_signaled_; }
  bool connected() const noexcept { return connected_; }
  // What stands in for the request's elements, one each.
  std::span<registration::Hold> holds(const Request& r) noexcept {
    return {&holds_[slot(r.seq) * sges_], sges_};
  }
  std::byte* inlined(const Request& r) noexcept {
    return inline_.data() + slot(r.seq) * inline_bytes_;
  }

private:
  size_t slot(uint64_t seq) const noexcept { return seq & mask_; }
  void grow();

  const bool all_signaled_;
  const bool connected_;
  const uint32_t sges_;
  const uint32_t inline_bytes_;
  const size_t capacity_;
  // Of the slots: a power of two, so that no post divides. There are as many as the most requests
  // that were outstanding needed, for deep queues are seldom full.
  size_t mask_;
  size_t room_; // requests until there must be more slots, or none is left
  std::vector<Request> requests_;
  std::vector<ibv_sge> elements_;
  std::vector<registration::Hold> holds_;
  std::vector<std::byte> inline_;
  uint64_t head_;
  uint64_t tail_;
};

} // namespace adverb::steering
