// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What several ways do alike.
#include "steering/way.h"
#include "steering/elements.h"
#include "steering/opcode.h"

#include <cerrno>

namespace adverb::steering {

Fit by_virtual_key(const Facts& facts) noexcept {
  if (facts.length > facts.length_max)
    return Fit::no;
  switch (facts.peer) {
  case Peer::unknown:
    return Fit::ask_peer;
  case Peer::stock:
    return Fit::no;
  case Peer::lost:
    return Fit::wait;
  case Peer::asking: // what has to be known besides is asked meanwhile
    return Fit::ask_key;
  case Peer::linked:
    break;
  }
  if (!facts.key.known())
    return Fit::ask_key;
  return facts.key.kind == KeyVerdict::Kind::virtual_key ? Fit::yes : Fit::no;
}

Step post_with_elements(WayContext& context, Request& r, const ibv_send_wr& wr, LaneOwner& owner,
                        int& why) {
  uint32_t used = 0;
  // What a fenced message behind it waits for, nothing might tell that it is here (qp_lane.h).
  // And of a result's element only the first 8 bytes are written.
  r.in_place |= is_atomic(r.wr.opcode) && (!r.signaled || r.length != 8);
  why = context.elements.lend_to_device(r, context.device.room(), used);
  if (why == ENOMEM && is_atomic(r.wr.opcode) && r.length == 8) [[unlikely]] {
    r.in_place = false;
    why = context.elements.lend_to_device(r, context.device.room(), used);
  }
  if (why != 0)
    return Step::refused;
  if (reads_remote(r.wr.opcode) && context.elements.copies_in() && context.elements.overtakes(r))
      [[unlikely]] {
    context.elements.release(r);
    context.device.want_brought();
    return Step::wait;
  }
  context.device.post(r, wr, used, owner);
  return Step::issued;
}

void end_of_device_part(WayContext& context, Request& r) {
  if (!r.holding)
    return;
  if (r.result.wc.status == IBV_WC_SUCCESS && reads_remote(r.wr.opcode) &&
      !context.elements.deliver(r))
    cannot_deliver(context, r);
  context.elements.release(r);
}

void cannot_deliver(WayContext& context, Request& r) {
  if (!r.signaled)
    r.result = {}; // the device has not reported this one
  r.result.wc.status = IBV_WC_LOC_PROT_ERR;
  context.queue.undelivered(r);
}

} // namespace adverb::steering
