// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Queue pairs and shared receive queues: creation, destruction, and the plain posts.
#include "interpose/dispatch.h"
#include "interpose/patch.h"
#include "model/context.h"
#include "model/cq.h"
#include "model/qp.h"
#include "model/srq.h"
#include "model/verbs.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "provider/ops.h"
#include "provider/real.h"

#include <cerrno>

namespace adverb::model {

using observe::Counter;

namespace {

// One more send than the program asked for: the marker (send_queue.h).
constexpr uint32_t own_sends = 1;

template <typename Attr> bool asks_for_managed(const Attr& attr) {
  auto& objects = Objects::get();
  return attr.send_cq != nullptr && attr.recv_cq != nullptr &&
         objects.cqs.find(attr.send_cq) != nullptr && objects.cqs.find(attr.recv_cq) != nullptr &&
         (attr.qp_type == IBV_QPT_RC || attr.qp_type == IBV_QPT_UC || attr.qp_type == IBV_QPT_UD ||
          attr.qp_type == IBV_QPT_RAW_PACKET);
}

void manage(const std::shared_ptr<Context>& context, ibv_qp* qp, ibv_pd* pd, ibv_cq* send_cq,
            ibv_cq* recv_cq, ibv_srq* srq, ibv_qp_type type, ibv_qp_cap& cap, bool all_signaled,
            uint32_t extra) {
  auto& objects = Objects::get();
  cap.max_send_wr -= std::min(extra, cap.max_send_wr);
  Qp::Parts parts{context, context->pd(pd), objects.cqs.share(send_cq), objects.cqs.share(recv_cq),
                  srq != nullptr ? objects.srqs.share(srq) : nullptr};
  auto mine = std::make_shared<Qp>(std::move(parts), qp, type, cap, all_signaled, extra);
  objects.qps.insert(qp, mine);
  interpose::add_qp(qp, true);
  mine->announce();
  observe::count(Counter::qps_managed);
}

} // namespace

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  const auto context = find(pd->context);
  const auto& real = provider::real();
  const bool managed = context && asks_for_managed(*attr);
  const bool one_sided = attr->qp_type == IBV_QPT_RC || attr->qp_type == IBV_QPT_UC;
  ibv_qp* qp = nullptr;
  uint32_t extra = managed && one_sided ? own_sends : 0;
  {
    const provider::Inside inside;
    ibv_qp_init_attr mine = *attr;
    mine.cap.max_send_wr += extra;
    qp = real.ibv_create_qp(pd, &mine);
    if (qp == nullptr && extra != 0) {
      mine = *attr;
      extra = 0;
      qp = real.ibv_create_qp(pd, &mine);
    }
    if (qp != nullptr)
      attr->cap = mine.cap;
  }
  if (qp == nullptr)
    return nullptr;
  if (managed)
    manage(context, qp, pd, attr->send_cq, attr->recv_cq, attr->srq, attr->qp_type, attr->cap,
           attr->sq_sig_all != 0, extra);
  else if (context)
    interpose::add_qp(qp, false), observe::count(Counter::qps_unmanaged);
  return qp;
}

ibv_qp* create_qp_ex(ibv_context* verbs, ibv_qp_init_attr_ex* attr) {
  const auto create = provider::ops(verbs).create_qp_ex;
  const auto context = find(verbs);
  const bool managed =
      context && (attr->comp_mask & IBV_QP_INIT_ATTR_PD) != 0 && asks_for_managed(*attr);
  const bool one_sided = attr->qp_type == IBV_QPT_RC || attr->qp_type == IBV_QPT_UC;
  uint32_t extra = managed && one_sided ? own_sends : 0;
  ibv_qp* qp = nullptr;
  {
    const provider::Inside inside;
    ibv_qp_init_attr_ex mine = *attr;
    mine.cap.max_send_wr += extra;
    qp = create(verbs, &mine);
    if (qp == nullptr && extra != 0) {
      mine = *attr;
      extra = 0;
      qp = create(verbs, &mine);
    }
    if (qp != nullptr)
      attr->cap = mine.cap;
  }
  if (qp == nullptr)
    return nullptr;
  if (managed) {
    if ((attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0) {
      const provider::Inside inside;
      interpose::patch_qp_ex(provider::real().ibv_qp_to_qp_ex(qp));
    }
    manage(context, qp, attr->pd, attr->send_cq, attr->recv_cq, attr->srq, attr->qp_type, attr->cap,
           attr->sq_sig_all != 0, extra);
  } else if (context) {
    interpose::add_qp(qp, false);
    observe::count(Counter::qps_unmanaged);
  }
  return qp;
}

int destroy_qp(ibv_qp* qp) {
  const auto mine = Objects::get().qps.erase(qp);
  if (mine)
    mine->close();
  interpose::remove_qp(qp);
  int rc = 0;
  {
    const provider::Inside inside;
    rc = provider::real().ibv_destroy_qp(qp);
  }
  if (!mine)
    return rc;
  if (rc != 0) { // a multicast group still holds it: it stays usable for local operations
    mine->reopen();
    Objects::get().qps.insert(qp, mine);
    interpose::add_qp(qp, true);
    return rc;
  }
  mine->forget();
  return 0;
}

int modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  if (const auto mine = Objects::get().qps.share(qp))
    return mine->modify(attr, mask);
  const provider::Inside inside;
  return provider::real().ibv_modify_qp(qp, attr, mask);
}

int query_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) {
  int rc = 0;
  {
    const provider::Inside inside;
    rc = provider::real().ibv_query_qp(qp, attr, mask, init);
  }
  if (rc == 0)
    if (const Qp* mine = Objects::get().qps.find(qp)) {
      attr->cap.max_send_wr -= std::min(mine->extra_send(), attr->cap.max_send_wr);
      init->cap.max_send_wr -= std::min(mine->extra_send(), init->cap.max_send_wr);
    }
  return rc;
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  if (Qp* mine = Objects::get().qps.find(qp))
    return mine->post_send(wr, bad);
  return provider::ops(qp->context).post_send(qp, wr, bad);
}

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  if (Qp* mine = Objects::get().qps.find(qp))
    return mine->post_recv(wr, bad);
  return provider::ops(qp->context).post_recv(qp, wr, bad);
}

namespace {

void manage_srq(const std::shared_ptr<Context>& context, ibv_srq* srq, ibv_pd* pd,
                const ibv_srq_attr& attr) {
  interpose::patch_data_path(srq->context);
  Objects::get().srqs.insert(srq, std::make_shared<Srq>(context, context->pd(pd), srq, attr));
  interpose::add_srq(srq, true);
}

} // namespace

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  ibv_srq* srq = nullptr;
  {
    const provider::Inside inside;
    srq = provider::real().ibv_create_srq(pd, attr);
  }
  if (srq != nullptr)
    if (const auto context = find(pd->context))
      manage_srq(context, srq, pd, attr->attr);
  return srq;
}

ibv_srq* create_srq_ex(ibv_context* verbs, ibv_srq_init_attr_ex* attr) {
  ibv_srq* srq = nullptr;
  {
    const provider::Inside inside;
    srq = provider::ops(verbs).create_srq_ex(verbs, attr);
  }
  const bool basic =
      (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) == 0 || attr->srq_type == IBV_SRQT_BASIC;
  if (srq != nullptr && basic && (attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) != 0)
    if (const auto context = find(verbs))
      manage_srq(context, srq, attr->pd, attr->attr);
  return srq;
}

int destroy_srq(ibv_srq* srq) {
  const auto mine = Objects::get().srqs.erase(srq);
  interpose::remove_srq(srq);
  const provider::Inside inside;
  const int rc = provider::real().ibv_destroy_srq(srq);
  if (rc != 0 && mine) {
    Objects::get().srqs.insert(srq, mine);
    interpose::add_srq(srq, true);
  } else if (mine) {
    mine->forget();
  }
  return rc;
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  if (Srq* mine = Objects::get().srqs.find(srq))
    return mine->post(wr, bad);
  return provider::ops(srq->context).post_srq_recv(srq, wr, bad);
}

} // namespace adverb::model
