// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "provider/ops.h"

#include <array>
#include <atomic>
#include <mutex>

namespace adverb::provider {
namespace {

// A process opens few devices: a short list that readers walk without a lock. A slot is written
// before its key; a key taken away leaves the slot for the next context.
struct Slot {
  std::atomic<ibv_context*> key{nullptr};
  ContextOps ops;
};

std::array<Slot, 64> slots;
std::mutex lock;

template <typename F> F member(verbs_context* v, F verbs_context::* at) {
  // verbs_context grows at its front: a provider built against an older one has no such field.
  auto* field = reinterpret_cast<char*>(&(v->*at));
  auto* end = reinterpret_cast<char*>(&v->context);
  const auto distance = static_cast<size_t>(end - field) + sizeof(ibv_context);
  return distance <= v->sz ? v->*at : nullptr;
}

ContextOps read(ibv_context* context) {
  ContextOps o;
  o.post_send = context->ops.post_send;
  o.post_recv = context->ops.post_recv;
  o.post_srq_recv = context->ops.post_srq_recv;
  o.poll_cq = context->ops.poll_cq;
  o.req_notify_cq = context->ops.req_notify_cq;
  if (verbs_context* v = verbs_get_ctx(context)) {
    o.create_qp_ex = member(v, &verbs_context::create_qp_ex);
    o.create_cq_ex = member(v, &verbs_context::create_cq_ex);
    o.create_srq_ex = member(v, &verbs_context::create_srq_ex);
    o.create_wq = member(v, &verbs_context::create_wq);
    o.open_qp = member(v, &verbs_context::open_qp);
    o.advise_mr = member(v, &verbs_context::advise_mr);
  }
  return o;
}

} // namespace

const ContextOps& ops(ibv_context* context) noexcept {
  for (Slot& s : slots)
    if (s.key.load(std::memory_order_acquire) == context)
      return s.ops;
  thread_local ContextOps unpatched;
  unpatched = read(context);
  return unpatched;
}

bool keep_ops(ibv_context* context) {
  const std::lock_guard hold(lock);
  Slot* free = nullptr;
  for (Slot& s : slots) {
    if (s.key.load(std::memory_order_relaxed) == context)
      return true;
    if (free == nullptr && s.key.load(std::memory_order_relaxed) == nullptr)
      free = &s;
  }
  if (free == nullptr)
    return false;
  free->ops = read(context);
  free->key.store(context, std::memory_order_release);
  return true;
}

void drop_ops(ibv_context* context) noexcept {
  const std::lock_guard hold(lock);
  for (Slot& s : slots)
    if (s.key.load(std::memory_order_relaxed) == context)
      s.key.store(nullptr, std::memory_order_release);
}

} // namespace adverb::provider
