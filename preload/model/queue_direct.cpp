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

namespace adverb::model {

using steering::Order;
using steering::Request;

// Whether the device may have it as it stands. What this does not know to be so takes the long way.
[[gnu::always_inline]] inline bool Queue::stands(const ibv_send_wr& wr) {
  if (!steering::goes_on_connected(wr.opcode) || static_cast<uint32_t>(wr.num_sge) > ring_.sges())
    return false;
  if (steering::is_one_sided(wr.opcode)) {
    const uint32_t key = steering::remote_key(wr);
    if (!real_.is(key) && !host_.is_real(key, real_))
      return false;
  }
  return elements_.stand(wr);
}

// One more for the list that goes bare, if it may.
[[gnu::always_inline]] inline bool Queue::goes_bare(const ibv_send_wr& wr, QpLane::Bare& bare) {
  if (!is_bare(wr.wr_id) || !stands(wr))
    return false;
  ++bare.posted;
  bare.last_reports = ring_.all_signaled() || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  bare.reports += bare.last_reports ? 1 : 0;
  bare.receives += steering::consumes_receive(wr.opcode) ? 1 : 0;
  bare.reads |= wr.opcode == IBV_WR_RDMA_READ;
  bare.atomics |= steering::is_atomic(wr.opcode);
  bare.writes |= wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  return true;
}

bool Queue::post_bare(ibv_send_wr* list, ibv_send_wr** bad, int& rc) {
  // With order "relaxed" a WRITE that another lane carries could complete before one of these.
  if (mode_ != Mode::open || gate_ != Gate::open || !ring_.empty() || order_ != Order::strict)
    return false;
  QpLane::Bare bare;
  for (const ibv_send_wr* wr = list; wr != nullptr; wr = wr->next)
    if (!goes_bare(*wr, bare))
      return false;
  rc = device_.post_bare(list, bad);
  if (rc != 0) [[unlikely]] { // those before the one that was not taken are with the device
    bare = {};
    for (const ibv_send_wr* wr = list; wr != nullptr && wr != *bad; wr = wr->next)
      goes_bare(*wr, bare);
  }
  if (bare.posted != 0) [[likely]] {
    device_.took_bare(bare);
    world_.counters.count(table_.back()->carried, bare.posted);
  }
  return true;
}

// What is behind it in the ring, and not with the device yet, is flushed.
void Queue::bare_failed() {
  device_.bare_failed();
  fail();
}

Queue::Refused Queue::post_direct(ibv_send_wr*& list) {
  if (mode_ != Mode::open || gate_ != Gate::open || !all_issued())
    return {};
  for (const steering::Lane* const lane : lanes_)
    if (lane->busy())
      return {};
  const uint64_t from = ring_.tail();
  for (; list != nullptr && stands(*list); list = list->next) {
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
  world_.counters.count(table_.back()->carried, ring_.tail() - from);
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
