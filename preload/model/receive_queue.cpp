// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/receive_queue.h"
#include "model/context.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "queue/qp_lane.h"
#include "world/world.h"

#include <algorithm>
#include <cerrno>

namespace adverb::model {

namespace {
// A receive's wr_id at the provider: receive_bit, the slot's generation, the slot.
constexpr uint64_t generation_shift = 32;
constexpr uint32_t generation_mask = 0x3FFFFFFF;

// Far from those of any other queue, so that no slot is taken for one of a queue that is gone.
uint32_t first_generation(Context& context) {
  return static_cast<uint32_t>(context.next_queue() * 0x9E3779B1) & generation_mask;
}
} // namespace

ReceiveQueue::ReceiveQueue(Context& context, const ibv_pd* pd, registration::Staging& staging,
                           uint32_t most, uint32_t sges)
    : context_(context), pd_(pd), staging_(staging), sges_(std::max(sges, 1U)),
      generation_(first_generation(context)),
      takes_ahead_(context.world().policy().repairs(context.device(), IBV_QPT_RC)),
      prepared_(sges_) {
  constexpr uint32_t at_first = 4;
  grow(std::clamp(most, 1U, at_first));
}

ReceiveQueue::~ReceiveQueue() {
  clear();
}

void ReceiveQueue::bring_in(const ibv_recv_wr* list) const noexcept {
  for (; list != nullptr; list = list->next)
    if (list->num_sge > 0 && static_cast<uint32_t>(list->num_sge) <= sges_)
      context_.regions().bring_in(pd_, {list->sg_list, static_cast<size_t>(list->num_sge)});
}

int ReceiveQueue::prepare(ibv_recv_wr& wr, registration::Behind behind) {
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > sges_)
    return EINVAL;
  if (free_.empty())
    grow(static_cast<uint32_t>(slots_.size())); // the provider judges whether there is room
  const uint32_t index = free_.back();
  const auto sges = std::span(prepared_).first(static_cast<size_t>(wr.num_sge));
  std::copy_n(wr.sg_list, wr.num_sge, sges.begin());
  if (takes_ahead()) [[unlikely]]
    look_at_memory(sges);
  Slot& slot = slots_[index];
  for (size_t i = 0; i < sges.size(); ++i) {
    elements(index)[i] = sges[i];
    if (sges[i].length == 0)
      continue;
    if (number_ == 0 && context_.regions().may_be_virtual(sges[i].lkey)) // others need no table
      number_ = world().staged_receives().placed().number();
    const int rc = context_.regions().localize_receive(pd_, staging_, context_.copy_below(), behind,
                                                       number_, sges[i], holds(index)[i]);
    // The provider meets the reserved key when a message arrives, and says so then.
    if (rc == EFAULT && world().log.every("receive-unmapped", 10))
      world().log.error("a receive of {} bytes lies in memory that is not mapped or cannot be "
                        "written: a message that arrives there fails",
                        sges[i].length);
    if (rc != ENOMEM && rc != EBUSY)
      continue;
    for (size_t j = 0; j < i; ++j)
      context_.regions().release(staging_, holds(index)[j]);
    if (rc == ENOMEM)
      tell_no_room(sges[i].length, behind);
    return rc;
  }
  for (size_t i = 0; i < sges.size(); ++i)
    if (holds(index)[i].block)
      ++staged_;
  free_.pop_back();
  slot.wr_id = wr.wr_id;
  slot.used = true;
  slot.sges = static_cast<uint32_t>(sges.size());
  wr.wr_id = queue::receive_bit | uint64_t{slot.generation} << generation_shift | index;
  wr.sg_list = sges.data();
  wr.next = nullptr;
  world().counters.count(observe::Counter::recvs_managed);
  return 0;
}

void ReceiveQueue::tell_no_room(uint32_t bytes, registration::Behind behind) const {
  if (behind == registration::Behind::staged) {
    if (world().log.every("receive-behind", 10))
      world().log.error("a receive of {} bytes cannot be posted: an earlier message is still to be "
                        "copied to the same memory, and staging has no room for this one; raise "
                        "\"staging\" in the policy, or post no receives that overlap",
                        bytes);
  } else if (world().log.every("receive-window", 10))
    world().log.error("a window for a receive of {} bytes cannot be registered; raise "
                      "RLIMIT_MEMLOCK, or post smaller receives",
                      bytes);
}

World& ReceiveQueue::world() const noexcept {
  return context_.world();
}

// By `more` slots: there are as many as the most receives that were posted at a time needed.
void ReceiveQueue::grow(uint32_t more) {
  const auto had = static_cast<uint32_t>(slots_.size());
  const uint32_t now = had + more;
  free_.reserve(now);
  holds_.resize(size_t{now} * sges_);
  elements_.resize(size_t{now} * sges_);
  slots_.resize(now, {.generation = generation_});
  for (uint32_t i = now; i-- > had;)
    free_.push_back(i);
}

void ReceiveQueue::free_slot(uint32_t index) {
  Slot& slot = slots_[index];
  for (uint32_t i = 0; i < slot.sges; ++i)
    if (holds(index)[i]) {
      if (holds(index)[i].block)
        --staged_;
      context_.regions().release(staging_, holds(index)[i]);
    }
  slot.used = false;
  slot.generation = (slot.generation + 1) & generation_mask;
  free_.push_back(index);
}

void ReceiveQueue::take_back(const ibv_recv_wr& prepared) {
  free_slot(static_cast<uint32_t>(prepared.wr_id));
}

bool ReceiveQueue::knows(uint64_t number) const noexcept {
  const auto index = static_cast<uint32_t>(number);
  return index < slots_.size() && slots_[index].used &&
         slots_[index].generation == (number >> generation_shift & generation_mask);
}

bool ReceiveQueue::awaits_copy(uintptr_t start, uint64_t bytes) const noexcept {
  return staged() != 0 && awaits(true, start, bytes);
}

bool ReceiveQueue::awaits_placing(uintptr_t start, uint64_t bytes) const noexcept {
  return awaits(false, start, bytes);
}

bool ReceiveQueue::awaits(bool staged, uintptr_t start, uint64_t bytes) const noexcept {
  for (uint32_t index = 0; index < slots_.size(); ++index)
    for (uint32_t i = 0; slots_[index].used && i < slots_[index].sges; ++i)
      if (holds(index)[i].staged_receive() == staged && holds(index)[i].place.meets(start, bytes))
        return true;
  return false;
}

std::optional<uint64_t> ReceiveQueue::complete(ibv_wc& wc, Receipts& receipts) {
  if (!knows(wc.wr_id))
    return std::nullopt;
  const auto index = static_cast<uint32_t>(wc.wr_id);
  const uint64_t wr_id = slots_[index].wr_id;
  if (wc.status == IBV_WC_SUCCESS) {
    const Receipt receipt = receipts.consume(wc);
    wc.byte_len = receipt.bytes;
    if (receipt.source == Receipt::Source::ahead) [[unlikely]]
      wc.status = deliver_ahead(index, receipt.kept.all());
    if (receipt.source == Receipt::Source::staged && !deliver_staged(index, receipt.bytes)) {
      // The message is here but its region is deregistered or its memory gone; a device would
      // have found out before it acknowledged.
      wc.status = IBV_WC_LOC_PROT_ERR;
      if (world().log.every("receive-gone", 1))
        world().log.error(
            "a received message of {} bytes cannot be copied to its buffer, which the program has "
            "deregistered, unmapped or protected; the receive completes in error",
            wc.byte_len);
    }
  }
  free_slot(index);
  return wr_id;
}

// A device would write there; what is no memory of the process's own (device memory, a dma-buf of
// another device) only a device can.
void ReceiveQueue::look_at_memory(std::span<const ibv_sge> elements) noexcept {
  for (const ibv_sge& each : elements) {
    if (each.length == 0 || each.lkey == looked_at_)
      continue;
    registration::Span unused;
    if (context_.regions().local(pd_, each, 0, unused) == ENOENT)
      takes_ahead_.store(false, std::memory_order_relaxed);
    looked_at_ = each.lkey;
  }
}

// As the device would, had it brought them: what does not fit, or may not be written, is an error.
ibv_wc_status ReceiveQueue::deliver_ahead(uint32_t index, std::span<const std::byte> bytes) {
  const auto to = std::span(elements(index), slots_[index].sges);
  uint64_t room = 0;
  for (const ibv_sge& each : to)
    room += each.length;
  if (bytes.size() > room) {
    if (world().log.every("receive-short", 1))
      world().log.warn("a message of {} bytes has come to a receive of {}, which completes in "
                       "error; of the error the peer hears with its next request",
                       bytes.size(), room);
    return IBV_WC_LOC_LEN_ERR;
  }
  for (const ibv_sge& each : to) {
    const auto here = bytes.first(std::min<size_t>(bytes.size(), each.length));
    if (!here.empty() && !context_.regions().place(pd_, each, here))
      return IBV_WC_LOC_PROT_ERR;
    bytes = bytes.subspan(here.size());
  }
  world().counters.count(observe::Counter::recvs_ahead);
  return IBV_WC_SUCCESS;
}

bool ReceiveQueue::deliver_staged(uint32_t index, uint32_t bytes) {
  for (uint32_t i = 0; i < slots_[index].sges && bytes != 0; ++i) {
    const uint32_t here = std::min(bytes, elements(index)[i].length);
    const auto& hold = holds(index)[i];
    if (hold.block && !context_.regions().deliver(pd_, hold, here))
      return false;
    bytes -= here;
  }
  return true;
}

void ReceiveQueue::clear() {
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].used)
      free_slot(i);
}

} // namespace adverb::model
