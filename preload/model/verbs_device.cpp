// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Device contexts, protection domains and asynchronous events.
#include "model/context.h"
#include "model/cq.h"
#include "model/objects.h"
#include "model/qp.h"
#include "model/start.h"
#include "model/verbs.h"

namespace adverb::model {

namespace {

// A context is managed when the policy could change anything on its device: a region registered
// another way, or a peer that may have done so.
bool wanted(World& world, ibv_context* context) {
  const auto& policy = world.policy();
  if (policy.idle())
    return false;
  const char* device = context->device->name;
  return policy.may_unpin(device) || policy.peers({device, IBV_QPT_RC}) == policy::Peers::automatic;
}

ibv_context* adopt(World& world, ibv_context* context) {
  if (context == nullptr || !wanted(world, context))
    return context;
  started_on(world, context->device->name);
  world.objects().contexts.insert(context, std::make_shared<Context>(world, context));
  world.objects().edge.patch_creation(context);
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

// Events of adverb's own objects in the program's context are not the program's to see.
int Verbs::get_async_event(ibv_context* context, ibv_async_event* event) {
  for (;;) {
    int rc = 0;
    {
      const provider::Inside inside;
      rc = world.provider.real().ibv_get_async_event(context, event);
    }
    if (rc != 0)
      return rc;
    bool own = false;
    switch (event->event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      for (const auto& cq : world.objects().cqs.all())
        own |= cq->owns(event->element.qp);
      break;
    default:
      break;
    }
    if (!own) {
      if (event->event_type == IBV_EVENT_QP_FATAL || event->event_type == IBV_EVENT_QP_REQ_ERR ||
          event->event_type == IBV_EVENT_QP_ACCESS_ERR)
        if (const auto mine = world.objects().qps.share(event->element.qp))
          mine->look_at_state();
      return 0;
    }
    const provider::Inside inside;
    world.provider.real().ibv_ack_async_event(event);
  }
}

} // namespace adverb::model
