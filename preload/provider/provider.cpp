// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "provider/provider.h"

#include <dlfcn.h>

namespace adverb::provider {
namespace {

enum class Need { required, optional };
constexpr Need required = Need::required;
constexpr Need optional = Need::optional;

// The next libibverbs in search order; in a program that loaded it with RTLD_LOCAL there is no
// next, so an already loaded one by name, else a load of our own.
class Library {
public:
  explicit Library(observe::Log& log) : log_(log) {}

  template <typename F> void resolve(F& into, const char* name, const char* node, Need need) {
    into = reinterpret_cast<F>(find(name, node));
    if (into == nullptr && need == required)
      log_.error("{}@{} is not in the installed libibverbs; calls to it will fail; install a newer "
                 "rdma-core",
                 name, node);
  }

private:
  void* find(const char* name, const char* node) {
    if (void* f = dlvsym(RTLD_NEXT, name, node))
      return f;
    if (loaded_ == nullptr)
      loaded_ = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL);
    if (loaded_ == nullptr)
      loaded_ = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    return loaded_ == nullptr ? nullptr : dlvsym(loaded_, name, node);
  }

  observe::Log& log_;
  void* loaded_ = nullptr;
};

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
  o.bind_mw = context->ops.bind_mw;
  if (verbs_context* v = verbs_get_ctx(context)) {
    o.create_qp_ex = member(v, &verbs_context::create_qp_ex);
    o.create_cq_ex = member(v, &verbs_context::create_cq_ex);
    o.create_srq_ex = member(v, &verbs_context::create_srq_ex);
    o.create_wq = member(v, &verbs_context::create_wq);
    o.open_qp = member(v, &verbs_context::open_qp);
    o.advise_mr = member(v, &verbs_context::advise_mr);
    o.query_device_ex = member(v, &verbs_context::query_device_ex);
  }
  return o;
}

struct Unpatched;

} // namespace

const Real& Provider::resolve() noexcept {
  const std::lock_guard hold(resolving_);
  if (table_.load(std::memory_order_relaxed) == nullptr) {
    Library library(log_);
#define HOOK(ret, name, node, need, params, args, fail)                                            \
  library.resolve(found_.ibv_##name, "ibv_" #name, #node, need);
#define PASS(name, node, need, why)
#define CALL(name, node) library.resolve(found_.ibv_##name, "ibv_" #name, #node, required);
#include "provider/verbs.def"
    table_.store(&found_, std::memory_order_release);
  }
  return found_;
}

const ContextOps& Provider::ops(ibv_context* context) const noexcept {
  for (const Slot& s : slots_)
    if (s.key.load(std::memory_order_acquire) == context)
      return s.ops;
  ContextOps& unpatched = ThreadLocal<ContextOps, Unpatched>::get();
  unpatched = read(context);
  return unpatched;
}

bool Provider::keep_ops(ibv_context* context) {
  const std::lock_guard hold(slots_lock_);
  Slot* free = nullptr;
  for (Slot& s : slots_) {
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

void Provider::drop_ops(ibv_context* context) noexcept {
  const std::lock_guard hold(slots_lock_);
  for (Slot& s : slots_)
    if (s.key.load(std::memory_order_relaxed) == context)
      s.key.store(nullptr, std::memory_order_release);
}

void Provider::in_child() noexcept {
  renew(slots_lock_);
  renew(resolving_);
}

} // namespace adverb::provider
