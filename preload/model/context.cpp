// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/context.h"
#include "model/cq.h"
#include "model/qp.h"
#include "model/srq.h"
#include "observe/log.h"
#include "policy/policy.h"
#include "provider/real.h"
#include "transfer/responder.h"

#include <algorithm>

namespace adverb::model {

namespace {
// Copying into staging beats registering a window below this many bytes; Frey & Alonso found
// 32 KiB for pages that are not resident. A policy rule overrides it.
constexpr uint64_t copy_below_default = 16 * 1024;
} // namespace

Context::Context(ibv_context* context)
    : verbs_(context), device_(context->device->name), regions_(context) {
  const auto by_policy = policy::current().copy_below(device_);
  copy_below_ = std::min<uint64_t>(by_policy.value_or(copy_below_default) + (by_policy ? 0 : 1),
                                   registration::Staging::block_max + 1);
}

std::shared_ptr<Pd> Context::pd(ibv_pd* pd) {
  const std::lock_guard hold(lock_);
  auto& entry = pds_[pd];
  if (!entry)
    entry = std::make_shared<Pd>(pd);
  return entry;
}

// Whoever still holds the Pd for a moment (a timer that finds its queue pair gone) does not keep
// the program from deallocating: only what is registered in the domain would.
int Context::drop(ibv_pd* pd, int (*dealloc)(ibv_pd*)) {
  std::shared_ptr<Pd> mine;
  {
    const std::lock_guard hold(lock_);
    const auto it = pds_.find(pd);
    if (it != pds_.end()) {
      mine = it->second;
      pds_.erase(it);
    }
  }
  if (mine)
    mine->staging.close();
  const provider::Inside inside;
  const int rc = dealloc(pd);
  if (rc != 0 && mine) { // still in use
    mine->staging.reopen();
    const std::lock_guard hold(lock_);
    pds_.try_emplace(pd, mine);
  }
  return rc;
}

ibv_pd* Context::own_pd() {
  const std::lock_guard hold(lock_);
  if (own_pd_ == nullptr) {
    const provider::Inside inside;
    own_pd_ = provider::real().ibv_alloc_pd(verbs_);
  }
  return own_pd_;
}

void Context::use_device() {
  if (device_in_use_.load(std::memory_order_acquire) != nullptr)
    return;
  static std::once_flag installed;
  std::call_once(installed, transfer::install);
  auto device = link::Device::get(verbs_->device);
  const std::lock_guard hold(lock_);
  if (shared_device_ != nullptr || !device)
    return;
  shared_device_ = std::move(device);
  device_in_use_.store(shared_device_.get(), std::memory_order_release);
}

void Context::barrier() {
  if (link::Device* device = device_in_use_.load(std::memory_order_acquire))
    const std::lock_guard wait(device->progress_lock());
}

void Context::close() {
  const provider::Inside inside;
  regions_.close();
  const std::lock_guard hold(lock_);
  pds_.clear();
  if (own_pd_ != nullptr)
    provider::real().ibv_dealloc_pd(own_pd_);
  own_pd_ = nullptr;
}

Objects& Objects::get() {
  static auto* objects = new Objects;
  return *objects;
}

std::shared_ptr<Context> find(ibv_context* context) {
  auto found = Objects::get().contexts.share(context);
  return found && found->passes_through() ? nullptr : found;
}

std::shared_ptr<Context> find_any(ibv_context* context) {
  return Objects::get().contexts.share(context);
}

void Context::in_child(bool had_queues) {
  new (&lock_) std::mutex;
  new (&shared_device_) std::shared_ptr<link::Device>; // leaked: it is the parent's
  device_in_use_.store(nullptr);
  regions_.in_child();
  passes_through_ |= had_queues;
}

void after_fork_child() {
  auto& objects = Objects::get();
  const bool had_queues = !objects.cqs.empty() || !objects.qps.empty() || !objects.srqs.empty();
  objects.contexts.relock();
  for (const auto& context : objects.contexts.all())
    context->in_child(had_queues);
  objects.cqs.abandon();
  objects.srqs.abandon();
  objects.qps.abandon();
}

} // namespace adverb::model
