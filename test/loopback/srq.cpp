// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Receive queues, shared or a QP's own.
#include "events.h"

#include <cerrno>

namespace adverb::loopback {

uint64_t make_recv_queue(Process& process, uint32_t max_wr, uint32_t srq) {
  const uint64_t offset = process.allocate(sizeof(RecvQueue));
  const uint64_t wqes = process.allocate(uint64_t{max_wr} * sizeof(RecvWqe));
  if (offset == 0 || wqes == 0)
    return 0;
  auto& queue = *process.at<RecvQueue>(offset);
  init_robust(queue.consumer);
  queue.max_wr = max_wr;
  queue.srq = srq;
  queue.wqes = wqes;
  return offset;
}

void free_recv_queue(Process& process, uint64_t offset) {
  const auto& queue = *process.at<RecvQueue>(offset);
  process.release(queue.wqes, uint64_t{queue.max_wr} * sizeof(RecvWqe));
  process.release(offset, sizeof(RecvQueue));
}

int append_recv(Process& process, RecvQueue& queue, uint32_t max_sge, const ibv_recv_wr& wr) {
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > max_sge)
    return EINVAL;
  const uint64_t tail = queue.tail.load(std::memory_order_relaxed);
  if (tail - queue.head.load(std::memory_order_acquire) >= queue.max_wr)
    return ENOMEM;
  RecvWqe& wqe = process.at<RecvWqe>(queue.wqes)[tail % queue.max_wr];
  wqe.wr_id = wr.wr_id;
  wqe.num_sge = static_cast<uint32_t>(wr.num_sge);
  for (int i = 0; i < wr.num_sge; ++i)
    wqe.sge[i] = wr.sg_list[i];
  queue.tail.store(tail + 1, std::memory_order_release);
  return 0;
}

int post_srq_recv(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  auto* srq = as<Srq>(base);
  std::lock_guard lock(srq->post_mutex);
  for (; wr != nullptr; wr = wr->next)
    if (const int error = append_recv(*srq->process, *srq->queue, srq->max_sge, *wr); error != 0) {
      *bad = wr;
      return error;
    }
  return 0;
}

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* init) {
  const bool typed = (init->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0;
  if ((init->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || init->attr.max_wr == 0 ||
      init->attr.max_wr > kMaxWr || init->attr.max_sge > kMaxSge) {
    errno = EINVAL;
    return nullptr;
  }
  if (typed && init->srq_type != IBV_SRQT_BASIC) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  Process& process = *context_of(context)->process;
  auto* srq = new Srq{};
  srq->process = &process;
  srq->number = process.add_srq(srq);
  srq->max_sge = init->attr.max_sge;
  srq->type = IBV_SRQT_BASIC;
  srq->offset =
      srq->number == ~0u ? 0 : make_recv_queue(process, init->attr.max_wr, srq->number + 1);
  if (srq->offset == 0) {
    if (srq->number != ~0u)
      process.remove_srq(srq->number);
    delete srq;
    errno = ENOMEM;
    return nullptr;
  }
  srq->queue = process.at<RecvQueue>(srq->offset);
  srq->srq.context = context;
  srq->srq.srq_context = init->srq_context;
  srq->srq.pd = init->pd;
  srq->srq.handle = srq->number;
  pthread_mutex_init(&srq->srq.mutex, nullptr);
  pthread_cond_init(&srq->srq.cond, nullptr);
  as<Pd>(init->pd)->users.fetch_add(1);
  return &srq->srq;
}

int get_srq_num(ibv_srq* srq, uint32_t* number) {
  *number = as<Srq>(srq)->number;
  return 0;
}

} // namespace adverb::loopback

using namespace adverb::loopback;

extern "C" {

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  ibv_srq_init_attr_ex extended = {};
  extended.srq_context = init->srq_context;
  extended.attr = init->attr;
  extended.comp_mask = IBV_SRQ_INIT_ATTR_PD;
  extended.pd = pd;
  return create_srq_ex(pd->context, &extended);
}

int ibv_modify_srq(ibv_srq* base, ibv_srq_attr* attr, int mask) {
  auto* srq = as<Srq>(base);
  if ((mask & ~(IBV_SRQ_LIMIT | IBV_SRQ_MAX_WR)) != 0)
    return EINVAL;
  if ((mask & IBV_SRQ_LIMIT) != 0 && attr->srq_limit > srq->queue->max_wr)
    return EINVAL;
  if ((mask & IBV_SRQ_MAX_WR) != 0) {
    if (attr->max_wr == 0 || attr->max_wr > kMaxWr)
      return EINVAL;
    const uint64_t bytes = uint64_t{attr->max_wr} * sizeof(RecvWqe);
    const uint64_t fresh = srq->process->allocate(bytes);
    if (fresh == 0)
      return ENOMEM;
    std::lock_guard post_lock(srq->post_mutex);
    RobustLock lock(srq->queue->consumer);
    RecvQueue& queue = *srq->queue;
    const uint64_t head = queue.head.load(), tail = queue.tail.load();
    if (tail - head > attr->max_wr) {
      srq->process->release(fresh, bytes);
      return EINVAL;
    }
    const auto* from = srq->process->at<RecvWqe>(queue.wqes);
    auto* to = srq->process->at<RecvWqe>(fresh);
    for (uint64_t at = head; at != tail; ++at)
      to[at % attr->max_wr] = from[at % queue.max_wr];
    srq->process->release(queue.wqes, uint64_t{queue.max_wr} * sizeof(RecvWqe));
    queue.wqes = fresh;
    queue.max_wr = attr->max_wr;
  }
  if ((mask & IBV_SRQ_LIMIT) != 0)
    srq->queue->limit.store(attr->srq_limit);
  return 0;
}

int ibv_query_srq(ibv_srq* base, ibv_srq_attr* attr) {
  auto* srq = as<Srq>(base);
  attr->max_wr = srq->queue->max_wr;
  attr->max_sge = srq->max_sge;
  attr->srq_limit = srq->queue->limit.load();
  return 0;
}

int ibv_destroy_srq(ibv_srq* base) {
  auto* srq = as<Srq>(base);
  if (srq->users.load() != 0)
    return EBUSY;
  srq->process->synchronize(); // no queue pair uses it: after this nobody rings for it
  srq->process->remove_srq(srq->number);
  purge_async(base->context, srq);
  await_acknowledged(base->mutex, base->cond, base->events_completed, srq->events_delivered);
  free_recv_queue(*srq->process, srq->offset);
  as<Pd>(base->pd)->users.fetch_sub(1);
  delete srq;
  return 0;
}
}
