// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "interpose/dispatch.h"
#include "interpose/boundary.h"
#include "interpose/process_world.h"

#include <array>
#include <cerrno>
#include <mutex>

namespace adverb::interpose {
namespace {

struct QpSlot {
  Atomic<ibv_qp*> key{nullptr};
  decltype(&dispatch_post_send) post_send = nullptr;
  decltype(&dispatch_post_recv) post_recv = nullptr;
  model::Qp* managed = nullptr;
};
struct CqSlot {
  Atomic<ibv_cq*> key{nullptr};
  decltype(&dispatch_poll_cq) poll = nullptr;
  decltype(&dispatch_req_notify_cq) notify = nullptr;
  model::Cq* managed = nullptr;
};
struct SrqSlot {
  Atomic<ibv_srq*> key{nullptr};
  decltype(&dispatch_post_srq_recv) post = nullptr;
  model::Srq* managed = nullptr;
  uint64_t unused = 0;
};

// Objects are malloc'ed and some hundred bytes apart: the low bits of the address say nothing.
constexpr unsigned skip_bits = 6;
constexpr size_t slots = 4096;

// Static, so that an unmanaged post finds its slot by one computation and one load.
template <typename Slot> constinit std::array<Slot, slots> table;
constinit Mutex writers;

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

template <typename Slot> void forget() {
  for (Slot& s : table<Slot>)
    s.key.store(nullptr, std::memory_order_relaxed);
}

// What the model has behind an object: from its slot, or from the model's table if another object
// has that. Null: nothing, it is the provider's.
template <typename Slot, typename Object> auto* managed_behind(Object* object) {
  const Slot& s = slot_of<Slot>(object);
  if (s.key.load(std::memory_order_acquire) == object) [[likely]]
    return s.managed;
  return model::Verbs{process_world()}.managed(object);
}

const provider::ContextOps& ops(ibv_context* context) {
  return process_world().provider.ops(context);
}

// A failed post names the request it stopped at: here the first.
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  return boundary([&] { return *bad = wr, errno; },
                  [&] {
                    if (model::Qp* mine = managed_behind<QpSlot>(qp))
                      return model::post_send(*mine, wr, bad);
                    return ops(qp->context).post_send(qp, wr, bad);
                  });
}
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return boundary([&] { return *bad = wr, errno; },
                  [&] {
                    if (model::Qp* mine = managed_behind<QpSlot>(qp))
                      return model::post_recv(*mine, wr, bad);
                    return ops(qp->context).post_recv(qp, wr, bad);
                  });
}
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return boundary([&] { return *bad = wr, errno; },
                  [&] {
                    if (model::Srq* mine = managed_behind<SrqSlot>(srq))
                      return model::post_srq_recv(*mine, wr, bad);
                    return ops(srq->context).post_srq_recv(srq, wr, bad);
                  });
}
int poll_cq(ibv_cq* cq, int entries, ibv_wc* wc) {
  return boundary([] { return -1; },
                  [&] {
                    if (model::Cq* mine = managed_behind<CqSlot>(cq))
                      return model::poll_cq(*mine, entries, wc);
                    return ops(cq->context).poll_cq(cq, entries, wc);
                  });
}
int req_notify_cq(ibv_cq* cq, int solicited_only) {
  return boundary([] { return errno; },
                  [&] {
                    if (model::Cq* mine = managed_behind<CqSlot>(cq))
                      return model::req_notify_cq(*mine, solicited_only);
                    return ops(cq->context).req_notify_cq(cq, solicited_only);
                  });
}

} // namespace

void add_qp(ibv_qp* qp, model::Qp* managed) {
  add<QpSlot>(qp, [&](QpSlot& s) {
    s.managed = managed;
    s.post_send = managed != nullptr ? post_send : ops(qp->context).post_send;
    s.post_recv = managed != nullptr ? post_recv : ops(qp->context).post_recv;
  });
}

void remove_qp(ibv_qp* qp) {
  remove<QpSlot>(qp);
}

void add_cq(ibv_cq* cq, model::Cq* managed) {
  add<CqSlot>(cq, [&](CqSlot& s) {
    s.managed = managed;
    s.poll = managed != nullptr ? poll_cq : ops(cq->context).poll_cq;
    s.notify = managed != nullptr ? req_notify_cq : ops(cq->context).req_notify_cq;
  });
}

void remove_cq(ibv_cq* cq) {
  remove<CqSlot>(cq);
}

void add_srq(ibv_srq* srq, model::Srq* managed) {
  add<SrqSlot>(srq, [&](SrqSlot& s) {
    s.managed = managed;
    s.post = managed != nullptr ? post_srq_recv : ops(srq->context).post_srq_recv;
  });
}

void remove_srq(ibv_srq* srq) {
  remove<SrqSlot>(srq);
}

model::Qp* managed(ibv_qp_ex* qp) {
  return managed_behind<QpSlot>(&qp->qp_base);
}

model::Cq* managed(ibv_cq_ex* cq) {
  return managed_behind<CqSlot>(ibv_cq_ex_to_cq(cq));
}

int dispatch_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  const QpSlot& s = slot_of<QpSlot>(qp);
  if (s.key.load(std::memory_order_acquire) == qp) [[likely]]
    return s.post_send(qp, wr, bad);
  return post_send(qp, wr, bad);
}

int dispatch_post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  const QpSlot& s = slot_of<QpSlot>(qp);
  if (s.key.load(std::memory_order_acquire) == qp) [[likely]]
    return s.post_recv(qp, wr, bad);
  return post_recv(qp, wr, bad);
}

int dispatch_post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  const SrqSlot& s = slot_of<SrqSlot>(srq);
  if (s.key.load(std::memory_order_acquire) == srq) [[likely]]
    return s.post(srq, wr, bad);
  return post_srq_recv(srq, wr, bad);
}

int dispatch_poll_cq(ibv_cq* cq, int entries, ibv_wc* wc) {
  const CqSlot& s = slot_of<CqSlot>(cq);
  if (s.key.load(std::memory_order_acquire) == cq) [[likely]]
    return s.poll(cq, entries, wc);
  return poll_cq(cq, entries, wc);
}

int dispatch_req_notify_cq(ibv_cq* cq, int solicited_only) {
  const CqSlot& s = slot_of<CqSlot>(cq);
  if (s.key.load(std::memory_order_acquire) == cq) [[likely]]
    return s.notify(cq, solicited_only);
  return req_notify_cq(cq, solicited_only);
}

int dispatch_bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind) {
  return uncancelled([] { return errno; },
                     [&] {
                       if (model::Qp* mine = managed_behind<QpSlot>(qp))
                         return model::bind_mw(*mine, mw, bind);
                       return ops(qp->context).bind_mw(qp, mw, bind);
                     });
}

void forget_all() {
  renew(writers);
  forget<QpSlot>();
  forget<CqSlot>();
  forget<SrqSlot>();
}

} // namespace adverb::interpose
