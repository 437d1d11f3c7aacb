// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "interpose/dispatch.h"
#include "interpose/boundary.h"
#include "model/verbs.h"
#include "provider/ops.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>

namespace adverb::interpose {
namespace {

int error() {
  return errno;
}
int minus_one() {
  return -1;
}

// A failed post names the request it stopped at: here the first.
int managed_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  return boundary([&] { return *bad = wr, errno; }, [&] { return model::post_send(qp, wr, bad); });
}
int managed_post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return boundary([&] { return *bad = wr, errno; }, [&] { return model::post_recv(qp, wr, bad); });
}
int managed_post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return boundary([&] { return *bad = wr, errno; },
                  [&] { return model::post_srq_recv(srq, wr, bad); });
}
int managed_poll_cq(ibv_cq* cq, int entries, ibv_wc* wc) {
  return boundary(minus_one, [&] { return model::poll_cq(cq, entries, wc); });
}
int managed_req_notify_cq(ibv_cq* cq, int solicited_only) {
  return boundary(error, [&] { return model::req_notify_cq(cq, solicited_only); });
}

struct QpSlot {
  std::atomic<ibv_qp*> key{nullptr};
  decltype(&dispatch_post_send) post_send = nullptr;
  decltype(&dispatch_post_recv) post_recv = nullptr;
  uint64_t unused = 0;
};
struct CqSlot {
  std::atomic<ibv_cq*> key{nullptr};
  decltype(&dispatch_poll_cq) poll = nullptr;
  decltype(&dispatch_req_notify_cq) notify = nullptr;
  uint64_t unused = 0;
};
struct SrqSlot {
  std::atomic<ibv_srq*> key{nullptr};
  decltype(&dispatch_post_srq_recv) post = nullptr;
};

// Objects are malloc'ed and some hundred bytes apart: the low bits of the address say nothing.
constexpr unsigned skip_bits = 6;
constexpr size_t slots = 4096;

template <typename Slot> std::array<Slot, slots> table;

std::mutex writers;

template <typename Slot, typename Object> Slot& slot_of(Object* object) {
  return table<Slot>[reinterpret_cast<uintptr_t>(object) >> skip_bits & (slots - 1)];
}

template <typename Slot, typename Object, typename Fill> void add(Object* object, Fill&& fill) {
  const std::lock_guard hold(writers);
  Slot& s = slot_of<Slot>(object);
  if (s.key.load(std::memory_order_relaxed) != nullptr)
    return;
  fill(s);
  s.key.store(object, std::memory_order_release);
}

template <typename Slot, typename Object> void remove(Object* object) {
  const std::lock_guard hold(writers);
  Slot& s = slot_of<Slot>(object);
  if (s.key.load(std::memory_order_relaxed) == object)
    s.key.store(nullptr, std::memory_order_release);
}

} // namespace

// Without a slot the model is asked: it knows its own objects and passes others to the provider.
void add_qp(ibv_qp* qp, bool managed) {
  add<QpSlot>(qp, [&](QpSlot& s) {
    const auto& ops = provider::ops(qp->context);
    s.post_send = managed ? managed_post_send : ops.post_send;
    s.post_recv = managed ? managed_post_recv : ops.post_recv;
  });
}

void remove_qp(ibv_qp* qp) {
  remove<QpSlot>(qp);
}

void add_cq(ibv_cq* cq, bool managed) {
  add<CqSlot>(cq, [&](CqSlot& s) {
    const auto& ops = provider::ops(cq->context);
    s.poll = managed ? managed_poll_cq : ops.poll_cq;
    s.notify = managed ? managed_req_notify_cq : ops.req_notify_cq;
  });
}

void remove_cq(ibv_cq* cq) {
  remove<CqSlot>(cq);
}

void add_srq(ibv_srq* srq, bool managed) {
  add<SrqSlot>(srq, [&](SrqSlot& s) {
    s.post = managed ? managed_post_srq_recv : provider::ops(srq->context).post_srq_recv;
  });
}

void remove_srq(ibv_srq* srq) {
  remove<SrqSlot>(srq);
}

int dispatch_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  const QpSlot& s = slot_of<QpSlot>(qp);
  if (s.key.load(std::memory_order_acquire) == qp) [[likely]]
    return s.post_send(qp, wr, bad);
  return managed_post_send(qp, wr, bad);
}

int dispatch_post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  const QpSlot& s = slot_of<QpSlot>(qp);
  if (s.key.load(std::memory_order_acquire) == qp) [[likely]]
    return s.post_recv(qp, wr, bad);
  return managed_post_recv(qp, wr, bad);
}

int dispatch_post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  const SrqSlot& s = slot_of<SrqSlot>(srq);
  if (s.key.load(std::memory_order_acquire) == srq) [[likely]]
    return s.post(srq, wr, bad);
  return managed_post_srq_recv(srq, wr, bad);
}

int dispatch_poll_cq(ibv_cq* cq, int entries, ibv_wc* wc) {
  const CqSlot& s = slot_of<CqSlot>(cq);
  if (s.key.load(std::memory_order_acquire) == cq) [[likely]]
    return s.poll(cq, entries, wc);
  return managed_poll_cq(cq, entries, wc);
}

int dispatch_req_notify_cq(ibv_cq* cq, int solicited_only) {
  const CqSlot& s = slot_of<CqSlot>(cq);
  if (s.key.load(std::memory_order_acquire) == cq) [[likely]]
    return s.notify(cq, solicited_only);
  return managed_req_notify_cq(cq, solicited_only);
}

void forget_all() {
  for (auto& s : table<QpSlot>)
    s.key.store(nullptr, std::memory_order_relaxed);
  for (auto& s : table<CqSlot>)
    s.key.store(nullptr, std::memory_order_relaxed);
  for (auto& s : table<SrqSlot>)
    s.key.store(nullptr, std::memory_order_relaxed);
}

} // namespace adverb::interpose
