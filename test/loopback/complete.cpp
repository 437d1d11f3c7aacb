// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the engine leaves behind: completions, and words to the process that owns the object.
#include "engine.h"

namespace adverb::loopback {

void push_completion(Process& process, uint32_t owner, char* arena, uint64_t offset,
                     const Completion& completion) {
  auto& cq = *reinterpret_cast<CqShared*>(arena + offset);
  bool wake = false;
  {
    RobustLock lock(cq.producer);
    const uint64_t tail = cq.tail.load(std::memory_order_relaxed);
    if (tail - cq.head.load(std::memory_order_acquire) >= cq.capacity) {
      uint32_t expected = 0; // the completion is lost, once reported, as adapters do
      wake = cq.overrun.compare_exchange_strong(expected, 1);
    } else {
      auto* entries = reinterpret_cast<Completion*>(arena + cq.entries);
      entries[tail % cq.capacity] = completion;
      entries[tail % cq.capacity].timestamp = now_ns();
      cq.tail.store(tail + 1, std::memory_order_seq_cst);
      const uint32_t armed = cq.armed.load(std::memory_order_seq_cst);
      if (armed == 2 || (armed == 1 && (completion.solicited != 0 || completion.status != 0)))
        wake = cq.armed.exchange(0) != 0;
    }
  }
  if (!wake)
    return;
  if (owner == process.index() && cq.overrun.load() != 1) {
    process.raise_cq(cq.number);
    return;
  }
  process.fabric().process[owner].cq_bits[cq.number / 64].fetch_or(uint64_t{1} << cq.number % 64);
  process.ring(owner, kLookAtCqs);
}

namespace {

void clean(Cq& cq, uint32_t number) {
  std::lock_guard poll_lock(cq.poll_mutex);
  CqShared& shared = *cq.shared;
  RobustLock lock(shared.producer);
  auto* entries = cq.process->at<Completion>(shared.entries);
  const uint64_t tail = shared.tail.load(std::memory_order_relaxed);
  uint64_t kept = shared.head.load(std::memory_order_relaxed);
  for (uint64_t at = kept; at != tail; ++at)
    if (entries[at % shared.capacity].qp_num != number)
      entries[kept++ % shared.capacity] = entries[at % shared.capacity];
  shared.tail.store(kept, std::memory_order_release);
}

} // namespace

void clean_cqs_of(Qp& qp) {
  if (!clean_cqs())
    return;
  ibv_qp* base = qp.base();
  clean(*as<Cq>(base->recv_cq), base->qp_num);
  if (base->send_cq != base->recv_cq)
    clean(*as<Cq>(base->send_cq), base->qp_num);
}

void raise_qp_event(Process& process, QpSlot& qp, uint32_t bits) {
  const auto index = static_cast<uint32_t>(&qp - process.fabric().qp);
  const uint32_t owner = qp.process.load();
  qp.events.fetch_or(bits);
  process.fabric().process[owner].qp_bits[index / 64].fetch_or(uint64_t{1} << index % 64);
  process.ring(owner, kLookAtQps);
}

Verdict check_key(Process& process, uint32_t owner, uint32_t incarnation, uint32_t pd, uint32_t key,
                  uint64_t address, uint64_t length, uint32_t rights, const Work& work,
                  uint32_t qpn, uint64_t* target) {
  const uint32_t index = key_index(key);
  if (index == 0 || index >= kMaxKeys)
    return Verdict::no_key;
  const KeySlot& slot = process.fabric().key[index];
  if (slot.key.load(std::memory_order_seq_cst) != key)
    return Verdict::no_key;
  if (slot.process != owner || slot.incarnation != incarnation)
    return Verdict::no_key;
  // A type 2 window answers to its QP, everything else to its PD.
  if (slot.window_qp != 0 ? slot.window_qp != qpn : slot.pd != pd)
    return Verdict::wrong_pd;
  if ((slot.access & rights) != rights)
    return Verdict::no_right;
  if (address < slot.iova || length > slot.length || address - slot.iova > slot.length - length)
    return Verdict::out_of_bounds;
  if ((slot.access & IBV_ACCESS_ON_DEMAND) != 0 && !pages_for(work))
    return Verdict::not_paged;
  *target = slot.address + (address - slot.iova);
  return Verdict::ok;
}

} // namespace adverb::loopback
