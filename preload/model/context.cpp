// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/context.h"
#include "link/links.h"
#include "model/device_habits.h"
#include "observe/directory.h"
#include "registration/critical_size.h"
#include "registration/send_sources.h"
#include "transfer/responder.h"
#include "world/world.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>
#include <vector>

namespace adverb::model {

namespace {
// So little is always copied, to slots that a queue pair keeps for that. What there is more of,
// registration/copied.h decides. A policy rule overrides both.
constexpr uint64_t copied_always = registration::SendSources::slot_bytes;
} // namespace

Context::Context(World& world, ibv_context* context)
    : world_(world), verbs_(context), device_(context->device->name), regions_(world, context),
      posts_by_system_call_(model::posts_by_system_call(context->device)) {
  const auto by_policy = world_.policy().copy_below(device_);
  copy_below_ = std::min<uint64_t>(by_policy.value_or(copied_always) + (by_policy ? 0 : 1),
                                   registration::Staging::block_max + 1);
}

Pd::Pd(World& world, ibv_pd* pd)
    : verbs(pd), staging(world, pd),
      slots(std::make_shared<link::Slots>(world, pd, [&world](const auto& reg) {
        return world.budgets().register_making_room(reg);
      })) {}

std::shared_ptr<Pd> Context::pd(ibv_pd* pd) {
  const std::lock_guard hold(lock_);
  auto& entry = pds_[pd];
  if (!entry)
    entry = std::make_shared<Pd>(world_, pd);
  return entry;
}

void Context::find_critical_size(ibv_pd* pd) noexcept {
  const std::lock_guard hold(habits_lock_);
  if (std::exchange(has_critical_size_, true) || world_.policy().copy_below(device_))
    return;
  try {
    measure_critical_size(pd);
  } catch (const std::bad_alloc&) { // then each has a window
  }
}

void Context::measure_critical_size(ibv_pd* pd) {
  std::vector<std::string> directories;
  if (!world_.page.is_private())
    directories = observe::own_directories();
  auto size = registration::kept_critical_size(directories, device_);
  if (!size) {
    const provider::Inside inside;
    const auto& real = world_.provider.real();
    size = registration::measure_critical_size(
        world_.clock, {[&](void* start, size_t bytes) {
                         return real.ibv_reg_mr(pd, start, bytes, IBV_ACCESS_LOCAL_WRITE);
                       },
                       [&](ibv_mr* mr) { real.ibv_dereg_mr(mr); }});
    if (size)
      registration::keep_critical_size(directories, device_, *size);
  }
  if (!size)
    return;
  regions_.copy_up_to(size->resident);
  world_.log.debug("{}: registering memory takes as long as copying {} bytes that are in memory, "
                   "or {} that are not",
                   device_, size->resident, size->absent);
}

// Whoever still holds the Pd for a moment (a timer that finds its queue pair gone) does not keep
// the program from deallocating: only what is registered in the domain would.
int Context::drop(ibv_pd* pd, int (*dealloc)(ibv_pd*)) {
  if (regions_.any_virtual(pd))
    return EBUSY; // as of any other region
  regions_.ends(pd);
  std::shared_ptr<Pd> mine;
  {
    const std::lock_guard hold(lock_);
    const auto it = pds_.find(pd);
    if (it != pds_.end()) {
      mine = it->second;
      pds_.erase(it);
    }
  }
  if (mine) {
    mine->staging.close();
    mine->slots->close();
  }
  const provider::Inside inside;
  const int rc = dealloc(pd);
  if (rc != 0 && mine) { // still in use
    mine->staging.reopen();
    mine->slots->reopen();
    const std::lock_guard hold(lock_);
    pds_.try_emplace(pd, mine);
  }
  return rc;
}

ibv_pd* Context::own_pd() {
  const std::lock_guard hold(lock_);
  if (own_pd_ == nullptr) {
    const provider::Inside inside;
    own_pd_ = world_.provider.real().ibv_alloc_pd(verbs_);
  }
  return own_pd_;
}

bool Context::leaves_completions() {
  const std::lock_guard hold(habits_lock_);
  if (!leaves_completions_)
    leaves_completions_ = model::leaves_completions(world_, own_pd());
  return *leaves_completions_;
}

void Context::use_device() {
  if (links_in_use_.load(std::memory_order_acquire) != nullptr)
    return;
  auto links = world_.links().progress(verbs_->device);
  const std::lock_guard hold(lock_);
  if (links_ != nullptr || !links)
    return;
  links_ = std::move(links);
  links_in_use_.store(links_.get(), std::memory_order_release);
}

void Context::barrier(const link::Scope& scope) {
  if (link::Progress* links = links_in_use_.load(std::memory_order_acquire))
    links->barrier(scope);
}

void Context::close() {
  const provider::Inside inside;
  regions_.close();
  const std::lock_guard hold(lock_);
  for (const auto& [verbs, pd] : pds_)
    pd->slots->close();
  pds_.clear();
  if (own_pd_ != nullptr)
    world_.provider.real().ibv_dealloc_pd(own_pd_);
  own_pd_ = nullptr;
}

int Context::pin_from_now_on(std::string_view what) {
  if (regions_.any_virtual()) {
    world_.log.error("{}: {} is refused: adverb does not manage it, and regions of this program "
                     "are not pinned; have the policy pin them (\"register\": \"pinned\")",
                     device_, what);
    return EOPNOTSUPP;
  }
  if (!pins_all_.exchange(true) && world_.policy().may_unpin(device_))
    world_.log.warn("{}: the program makes {}, which adverb does not manage; regions that are "
                    "registered from now on are pinned",
                    device_, what);
  return 0;
}

void Context::in_child(bool had_queues) {
  new (&lock_) Mutex;
  new (&habits_lock_) Mutex;
  new (&links_) std::shared_ptr<link::Progress>; // leaked: it is the parent's
  links_in_use_.store(nullptr);
  regions_.in_child();
  passes_through_ |= had_queues;
}

} // namespace adverb::model
