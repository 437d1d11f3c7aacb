// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The short ways of what the device takes as it stands: no region, no key of adverb's is named.
//
// While the ring is empty the program's list itself goes to the device, under the program's
// numbers: **passthrough**. Its completions are the program's as they come, and the device's lane
// knows by counting what is with the device. So nothing of it is kept, and nothing has to be:
// whatever happens to a passthrough request happens at the device, and what adverb does with
// requests behind it waits, by the rule of lane.h, until none is there.
//
// While other requests of the device's are in the ring, one goes by it but begins there posted,
// **direct**: without a copy of its elements, a choice, a turn.
#include "queue/queue.h"
#include "steering/opcode.h"
#include "world/world.h"

namespace adverb::queue {

using steering::Order;
using steering::Request;

bool Queue::open_passthrough() noexcept {
  // With order "relaxed" a WRITE that another lane carries could complete before one of these.
  return mode_ == Mode::open && gate_ == Gate::open && ring_.empty() && order_ == Order::strict &&
         device_.open_passthrough();
}

// What is behind it in the ring, and not with the device yet, is flushed.
void Queue::passthrough_failed() {
  close_passthrough();
  passthrough_.on_failed();
  device_.passthrough_landed();
  fail();
}

Queue::Refused Queue::post_direct(ibv_send_wr*& list) {
  if (mode_ != Mode::open || gate_ != Gate::open || !all_issued() || elements_.lands_apart())
    return {};
  close_passthrough();
  for (const steering::Lane* const lane : lanes_)
    if (lane->busy())
      return {};
  const uint64_t from = ring_.tail();
  for (uint64_t left = room(); left != 0 && list != nullptr && passthrough_.stands(*list);
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

} // namespace adverb::queue
