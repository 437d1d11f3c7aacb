// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Device contexts, protection domains and asynchronous events.
#include "model/context.h"
#include "model/cq.h"
#include "model/objects.h"
#include "model/qp.h"
#include "model/reload.h"
#include "model/start.h"
#include "model/verbs.h"
#include "policy/rule.h"
#include "world/no_cancel.h"
#include "world/world.h"

#include <cerrno>
#include <cstdint>
#include <new>

namespace adverb::model {

namespace {

// A context is managed when the policy could change anything on its device: a region registered
// another way, or a peer that may have done so.
bool wanted(World& world, ibv_context* context) {
  const auto& policy = world.policy();
  if (policy.idle())
    return false;
  const char* device = context->device->name;
  return policy.may_unpin(device) ||
         policy.ask<&policy::Rule::peers>({device, IBV_QPT_RC}) == policy::Peers::automatic;
}

ibv_context* adopt(World& world, ibv_context* context) {
  if (context == nullptr || !wanted(world, context))
    return context;
  started_on(world, context->device->name);
  world.reload().start();
  world.objects().contexts.insert(context, std::make_shared<Context>(world, context));
  // One that is half managed would hand out keys that nobody translates.
  if (!world.objects().edge.patch(context)) {
    if (const auto mine = world.objects().contexts.erase(context))
      mine->close();
    return context;
  }
  world.log.debug("device {} opened, managed", context->device->name);
  return context;
}

} // namespace

ibv_context* Verbs::open_device(ibv_device* device) {
  ibv_context* context = nullptr;
  {
    const provider::Inside inside;
    context = world.provider.real().ibv_open_device(device);
  }
  return adopt(world, context);
}

ibv_context* Verbs::import_device(int cmd_fd) {
  ibv_context* context = nullptr;
  {
    const provider::Inside inside;
    context = world.provider.real().ibv_import_device(cmd_fd);
  }
  return adopt(world, context);
}

int Verbs::close_device(ibv_context* context) {
  if (const auto mine = world.objects().contexts.erase(context)) {
    mine->close();
    world.objects().edge.unpatch(context);
  }
  const provider::Inside inside;
  return world.provider.real().ibv_close_device(context);
}

ibv_pd* Verbs::alloc_pd(ibv_context* context) {
  const provider::Inside inside;
  return world.provider.real().ibv_alloc_pd(context);
}

int Verbs::dealloc_pd(ibv_pd* pd) {
  if (const auto context = world.objects().managed(pd->context))
    return context->drop(pd, world.provider.real().ibv_dealloc_pd);
  const provider::Inside inside;
  return world.provider.real().ibv_dealloc_pd(pd);
}

int Verbs::make_unmanaged(ibv_context* context, std::string_view what) {
  const auto mine = world.objects().managed(context);
  return mine ? mine->pin_from_now_on(what) : 0;
}

namespace {

// Whether it is an event of an object of adverb's own in the program's context, which then has been
// taken note of.
bool take_own_event(World& world, ibv_async_event& event) {
  bool own = false;
  switch (event.event_type) {
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
  case IBV_EVENT_COMM_EST:
  case IBV_EVENT_SQ_DRAINED:
  case IBV_EVENT_PATH_MIG:
  case IBV_EVENT_PATH_MIG_ERR:
  case IBV_EVENT_QP_LAST_WQE_REACHED:
    for (const auto& cq : world.objects().cqs.all())
      own |= cq->owns(event.element.qp);
    break;
  default:
    break;
  }
  if (own) {
    const provider::Inside inside;
    world.provider.real().ibv_ack_async_event(&event);
  } else if (event.event_type == IBV_EVENT_QP_FATAL || event.event_type == IBV_EVENT_QP_REQ_ERR ||
             event.event_type == IBV_EVENT_QP_ACCESS_ERR) {
    if (const auto mine = world.objects().qps.share(event.element.qp))
      mine->look_at_state();
  }
  return own;
}

enum class Taken : uint8_t { own, programs, failed };

// Apart from the frame that waits, for which see below. `failed`: errno says why.
[[gnu::noinline]] Taken take_event(World& world, ibv_async_event& event) noexcept {
  const NoCancel whole;
  try {
    return take_own_event(world, event) ? Taken::own : Taken::programs;
  } catch (const std::bad_alloc&) {
    world.counters.count(observe::Counter::exceptions_caught);
    errno = ENOMEM;
    return Taken::failed;
  }
}

} // namespace

// It waits: a thread may be cancelled there, or leave by siglongjmp(3). So nothing is held
// meanwhile, nor counted as provider::Inside (it calls no hook), and this frame has nothing to be
// cleaned up.
int Verbs::get_async_event(ibv_context* context, ibv_async_event* event) {
  for (;;) {
    if (const int rc = world.provider.real().ibv_get_async_event(context, event); rc != 0)
      return rc;
    if (const Taken taken = take_event(world, *event); taken != Taken::own)
      return taken == Taken::programs ? 0 : -1;
  }
}

} // namespace adverb::model
