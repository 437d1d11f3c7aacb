// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Completion queues and channels.
#include "engine.h"
#include "events.h"

#include <cerrno>

namespace adverb::loopback {

namespace {

uint64_t ring_bytes(uint32_t entries) {
  return uint64_t{entries} * sizeof(Completion);
}

int make_cq(Cq& cq, ibv_context* base, uint32_t cqe, void* cq_context, ibv_comp_channel* channel,
            uint32_t vector) {
  Context* context = context_of(base);
  if (cqe == 0 || cqe > kMaxCqe || vector >= static_cast<uint32_t>(base->num_comp_vectors))
    return EINVAL;
  Process& process = *context->process;
  cq.process = &process;
  cq.offset = process.allocate(sizeof(CqShared));
  const uint64_t entries = process.allocate(ring_bytes(cqe));
  if (cq.offset == 0 || entries == 0)
    return ENOMEM;
  cq.shared = process.at<CqShared>(cq.offset);
  init_robust(cq.shared->producer);
  cq.shared->capacity = cqe;
  cq.shared->entries = entries;
  const uint32_t number = process.add_cq(&cq);
  if (number == ~0u)
    return ENOMEM;
  cq.shared->number = number;
  cq.ex.context = base;
  cq.ex.channel = channel;
  cq.ex.cq_context = cq_context;
  cq.ex.handle = number;
  cq.ex.cqe = static_cast<int>(cqe);
  pthread_mutex_init(&cq.ex.mutex, nullptr);
  pthread_cond_init(&cq.ex.cond, nullptr);
  if (channel != nullptr)
    as<Channel>(channel)->users.fetch_add(1);
  context->objects.fetch_add(1);
  return 0;
}

} // namespace

void deliver_cq_event(Cq& cq) {
  if (cq.ex.channel != nullptr)
    as<Channel>(cq.ex.channel)->events.push(&cq);
}

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* init) {
  constexpr uint32_t known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  constexpr uint64_t fields = uint64_t{IBV_WC_STANDARD_FLAGS} |
                              IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                              IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  if ((init->comp_mask & ~static_cast<uint32_t>(IBV_CQ_INIT_ATTR_MASK_FLAGS)) != 0 ||
      ((init->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 && (init->flags & ~known) != 0) ||
      (init->wc_flags & ~fields) != 0) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  auto* cq = new Cq{};
  if (const int error =
          make_cq(*cq, context, init->cqe, init->cq_context, init->channel, init->comp_vector);
      error != 0) {
    delete cq;
    errno = error;
    return nullptr;
  }
  install_extended_poll(*cq);
  return &cq->ex;
}

int modify_cq(ibv_cq*, ibv_modify_cq_attr*) {
  return EOPNOTSUPP;
}

int req_notify_cq(ibv_cq* base, int solicited_only) {
  CqShared& cq = *as<Cq>(base)->shared;
  uint32_t wanted = solicited_only != 0 ? 1 : 2;
  uint32_t armed = cq.armed.load();
  while (armed < wanted && !cq.armed.compare_exchange_weak(armed, wanted)) {
  }
  return 0;
}

} // namespace adverb::loopback

using namespace adverb::loopback;

extern "C" {

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto* channel = new Channel{};
  channel->channel.context = context;
  return &channel->channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* base) {
  auto* channel = as<Channel>(base);
  if (channel->users.load() != 0)
    return EBUSY;
  delete channel;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                      int vector) {
  auto* cq = new Cq{};
  const int error = cqe <= 0 ? EINVAL
                             : make_cq(*cq, context, static_cast<uint32_t>(cqe), cq_context,
                                       channel, static_cast<uint32_t>(vector));
  if (error != 0) {
    delete cq;
    errno = error;
    return nullptr;
  }
  return cq->base();
}

int ibv_destroy_cq(ibv_cq* base) {
  auto* cq = as<Cq>(base);
  if (cq->users.load() != 0)
    return EBUSY;
  Process& process = *cq->process;
  process.synchronize(); // no queue pair uses it: after this nobody rings for it
  process.remove_cq(cq->shared->number);
  purge_async(base->context, cq);
  await_acknowledged(base->mutex, base->cond, base->async_events_completed,
                     cq->async_events_delivered);
  if (base->channel != nullptr) {
    as<Channel>(base->channel)->events.purge([&](Cq* entry) { return entry == cq; });
    await_acknowledged(base->mutex, base->cond, base->comp_events_completed,
                       cq->comp_events_delivered);
    as<Channel>(base->channel)->users.fetch_sub(1);
  }
  process.release(cq->shared->entries, ring_bytes(cq->shared->capacity));
  process.release(cq->offset, sizeof(CqShared));
  context_of(base->context)->objects.fetch_sub(1);
  delete cq;
  return 0;
}

int ibv_resize_cq(ibv_cq* base, int cqe) {
  auto* cq = as<Cq>(base);
  if (cqe <= 0 || cqe > static_cast<int>(kMaxCqe))
    return EINVAL;
  Process& process = *cq->process;
  const uint64_t fresh = process.allocate(ring_bytes(static_cast<uint32_t>(cqe)));
  if (fresh == 0)
    return ENOMEM;
  std::lock_guard poll_lock(cq->poll_mutex);
  uint64_t old = 0;
  uint32_t old_capacity = 0;
  {
    RobustLock lock(cq->shared->producer);
    CqShared& shared = *cq->shared;
    const uint64_t head = shared.head.load(), tail = shared.tail.load();
    if (tail - head > static_cast<uint64_t>(cqe)) {
      process.release(fresh, ring_bytes(static_cast<uint32_t>(cqe)));
      return EINVAL;
    }
    const auto* from = process.at<Completion>(shared.entries);
    auto* to = process.at<Completion>(fresh);
    for (uint64_t at = head; at != tail; ++at)
      to[at % static_cast<uint32_t>(cqe)] = from[at % shared.capacity];
    old = shared.entries;
    old_capacity = shared.capacity;
    shared.entries = fresh;
    shared.capacity = static_cast<uint32_t>(cqe);
  }
  process.release(old, ring_bytes(old_capacity));
  base->cqe = cqe;
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  Cq* entry = nullptr;
  if (!as<Channel>(channel)->events.pop_marked(
          entry, [](Cq* taken) { taken->comp_events_delivered.fetch_add(1); }))
    return -1;
  *cq = entry->base();
  *cq_context = entry->ex.cq_context;
  return 0;
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned int count) {
  if (count != 0)
    acknowledge(cq->mutex, cq->cond, cq->comp_events_completed, count);
}
}
