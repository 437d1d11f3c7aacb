// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The short ways of what the device takes as it stands: no region, no key of adverb's is named.
//
// While the ring is empty the program's list itself goes to the device, under the program's
// numbers:
// **bare**. Its completions are the program's as they come, and the device's lane knows by counting
// what is with the device. So nothing of it is kept, and nothing has to be: whatever happens to a
// bare request happens at the device, and what adverb does with requests behind it waits, by the
// rule of lane.h, until none is there.
//
// While other requests of the device's are in the ring, one goes by it but begins there posted,
// **direct**: without a copy of its elements, a choice, a turn.
#include "model/queue.h"
#include "steering/opcode.h"
#include "world/world.h"

#include <new>

namespace adverb::model {

using steering::Order;
using steering::Request;

bool Queue::open_bare() noexcept {
  // With order "relaxed" a WRITE that another lane carries could complete before one of these.
  return mode_ == Mode::open && gate_ == Gate::open && ring_.empty() && order_ == Order::strict &&
         device_.open_bare();
}

bool BareRequests::ask(const ibv_send_wr& wr, uint32_t traits) {
  return (traits & steering::trait_one_sided) != 0 &&
         parts_.keys.is_real(steering::remote_key(wr), real_);
}

int BareRequests::not_taken(const ibv_send_wr& wr, int why) noexcept {
  owed_ = --asked_;
  receives_ -= steering::traits_of(wr.opcode) / steering::trait_receives % 2;
  return why;
}

void BareRequests::take(const ibv_send_wr& wr, uint32_t traits) noexcept {
  const uint32_t reports = (wr.send_flags | parts_.flags) / IBV_SEND_SIGNALED % 2;
  asked_ += reports;
  owed_ = asked_ + 1 - reports;
  if (reports == 0 || silent_.open != 0)
    take_silent(reports != 0);
  traits_ |= traits;
  receives_ += traits / steering::trait_receives % 2;
}

void BareRequests::take_silent(bool reports) noexcept {
  if (!reports) {
    ++silent_.count;
    ++silent_.open;
    return;
  }
  try {
    // What has left makes room before more is asked for.
    if (silent_.runs.size() == silent_.runs.capacity() && silent_.first > silent_.runs.size() / 2) {
      silent_.runs.erase(silent_.runs.begin(),
                         silent_.runs.begin() + static_cast<ptrdiff_t>(silent_.first));
      silent_.first = 0;
    }
    silent_.runs.push_back({asked_, silent_.open});
    silent_.open = 0;
  } catch (const std::bad_alloc&) { // a later report frees them
  }
}

void BareRequests::free_silent() noexcept {
  while (silent_.first != silent_.runs.size() && left(silent_.runs[silent_.first].report) <= 0)
    silent_.count -= silent_.runs[silent_.first++].count;
  if (silent_.first == silent_.runs.size()) {
    silent_.runs.clear();
    silent_.first = 0;
  }
}

void BareRequests::forget_silent() noexcept {
  silent_.count = silent_.open = 0;
  silent_.runs.clear();
  silent_.first = 0;
}

int BareRequests::post(ibv_send_wr* list, ibv_send_wr** bad) {
  if (list == nullptr)
    return not_bare;
  uint64_t wanted = 0;
  for (const ibv_send_wr* wr = list; wr != nullptr; wr = wr->next, ++wanted)
    if (!is_bare(wr->wr_id) || !stands(*wr))
      return not_bare;
  settle();
  if (wanted > parts_.most || outstanding() > parts_.most - wanted) [[unlikely]]
    return not_bare;         // those that fit go direct
  ibv_send_wr* first = list; // should the provider not say
  const int rc = parts_.post_send(parts_.qp, list, &first);
  if (rc != 0) [[unlikely]]
    *bad = first;
  uint64_t posted = 0;
  for (const ibv_send_wr* wr = list; wr != nullptr && (rc == 0 || wr != first); wr = wr->next) {
    take(*wr, steering::traits_of(wr->opcode));
    ++posted;
  }
  parts_.world.counters.count(parts_.posted, posted);
  return rc;
}

// What is behind it in the ring, and not with the device yet, is flushed.
void Queue::bare_failed() {
  close_bare();
  bare_.failed();
  fail();
}

Queue::Refused Queue::post_direct(ibv_send_wr*& list) {
  if (mode_ != Mode::open || gate_ != Gate::open || !all_issued())
    return {};
  close_bare();
  for (const steering::Lane* const lane : lanes_)
    if (lane->busy())
      return {};
  const uint64_t from = ring_.tail();
  for (uint64_t left = room(); left != 0 && list != nullptr && bare_.stands(*list);
       --left, list = list->next) {
    const bool follows =
        (list->send_flags & IBV_SEND_FENCE) != 0 || steering::reads_remote(list->opcode);
    if (follows && elements_.copies_in())
      break; // the device does not know when what it has brought is in its place
    Request* const r = ring_.push();
    if (r == nullptr)
      break;
    r->start_direct(next_++, *list,
                    ring_.all_signaled() || (list->send_flags & IBV_SEND_SIGNALED) != 0);
    device_.post_direct(*r, *list);
    if (device_.refused()) [[unlikely]]
      break;
  }
  if (ring_.tail() == from)
    return {};
  device_.commit();
  Refused refused;
  if (const auto refusal = device_.take_refusal()) [[unlikely]] {
    refused = {refusal->seq, refusal->why};
    ring_.truncate(refused.seq);
    next_ = refused.seq;
  }
  world_.counters.count(by_device_, ring_.tail() - from);
  return refused;
}

bool Queue::complete_direct(uint64_t seq, uint64_t& wr_id) {
  if (mode_ != Mode::open || next_ != ring_.tail() || !ring_.holds_seq(seq))
    return false;
  const uint64_t programs = ring_.at(seq).wr.wr_id;
  if (!device_.land_direct(seq))
    return false;
  wr_id = programs;
  if (oldest_is_done()) [[unlikely]]
    retire();
  else if (ring_.empty())
    tell_idle();
  return true;
}

} // namespace adverb::model
