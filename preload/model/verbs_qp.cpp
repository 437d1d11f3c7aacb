// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Queue pairs and shared receive queues: creation, destruction, and the plain posts.
#include "model/context.h"
#include "model/cq.h"
#include "model/objects.h"
#include "model/qp.h"
#include "model/srq.h"
#include "model/verbs.h"

#include <cerrno>
#include <new>

namespace adverb::model {

using observe::Counter;

namespace {

// One more send than the program asked for: the marker (qp_lane.h).
constexpr uint32_t own_sends = 1;

template <typename Attr> bool asks_for_managed(const Objects& objects, const Attr& attr) {
  return attr.send_cq != nullptr && attr.recv_cq != nullptr &&
         objects.cqs.find(attr.send_cq) != nullptr && objects.cqs.find(attr.recv_cq) != nullptr &&
         (attr.srq == nullptr || objects.srqs.find(attr.srq) != nullptr) &&
         (attr.qp_type == IBV_QPT_RC || attr.qp_type == IBV_QPT_UC || attr.qp_type == IBV_QPT_UD ||
          attr.qp_type == IBV_QPT_RAW_PACKET);
}

// Other types, and those over a completion or receive queue that is not managed.
bool may_be_unmanaged(Context& context) {
  const int why = context.pin_from_now_on("a queue pair of another kind");
  errno = why != 0 ? why : errno;
  return why == 0;
}

// Before there is one: what it cannot be used with is no longer made.
bool may_be_made(const std::shared_ptr<Context>& context, bool managed, ibv_context* verbs,
                 ibv_qp_type type) {
  if (!context)
    return true;
  context->regions().meet(verbs, type);
  return managed || may_be_unmanaged(*context);
}

void manage(const std::shared_ptr<Context>& context, ibv_qp* qp, ibv_pd* pd, ibv_cq* send_cq,
            ibv_cq* recv_cq, ibv_srq* srq, ibv_qp_type type, ibv_qp_cap& cap, bool all_signaled,
            uint32_t extra) {
  Objects& objects = context->world().objects();
  cap.max_send_wr -= std::min(extra, cap.max_send_wr);
  Qp::Parts parts{context, context->pd(pd), objects.cqs.share(send_cq), objects.cqs.share(recv_cq),
                  srq != nullptr ? objects.srqs.share(srq) : nullptr};
  auto mine = std::make_shared<Qp>(std::move(parts), qp, type, cap, all_signaled, extra);
  objects.qps.insert(qp, mine);
  objects.edge.add(qp, mine.get());
  mine->announce();
  context->world().counters.count(Counter::qps_managed);
}

// Gives the provider's queue pair back where it cannot be managed.
void give_back(Objects& objects, World& world, ibv_qp* qp) {
  const auto mine = objects.qps.erase(qp);
  objects.edge.remove(qp);
  try {
    if (mine)
      mine->close();
  } catch (const std::bad_alloc&) { // what could not be made need not be told
    world.counters.count(Counter::exceptions_caught);
  }
  {
    const provider::Inside inside;
    world.provider.real().ibv_destroy_qp(qp);
  }
  if (mine)
    mine->forget();
}

template <typename Manage> void manage_or_give_back(World& world, ibv_qp* qp, Manage&& manage) {
  try {
    manage();
  } catch (...) {
    give_back(world.objects(), world, qp);
    throw;
  }
}

} // namespace

ibv_qp* Verbs::create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  const auto context = world.objects().managed(pd->context);
  const auto& real = world.provider.real();
  const bool managed = context && asks_for_managed(world.objects(), *attr);
  if (!may_be_made(context, managed, pd->context, attr->qp_type))
    return nullptr;
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
    manage_or_give_back(world, qp, [&] {
      manage(context, qp, pd, attr->send_cq, attr->recv_cq, attr->srq, attr->qp_type, attr->cap,
             attr->sq_sig_all != 0, extra);
    });
  else if (context)
    world.objects().edge.add(qp, nullptr), world.counters.count(Counter::qps_unmanaged);
  return qp;
}

ibv_qp* Verbs::create_qp_ex(ibv_context* verbs, ibv_qp_init_attr_ex* attr) {
  const auto create = world.provider.ops(verbs).create_qp_ex;
  const auto context = world.objects().managed(verbs);
  const bool managed = context && (attr->comp_mask & IBV_QP_INIT_ATTR_PD) != 0 &&
                       asks_for_managed(world.objects(), *attr);
  if (!may_be_made(context, managed, verbs, attr->qp_type))
    return nullptr;
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
      world.objects().edge.patch_qp_ex(world.provider.real().ibv_qp_to_qp_ex(qp));
    }
    manage_or_give_back(world, qp, [&] {
      manage(context, qp, attr->pd, attr->send_cq, attr->recv_cq, attr->srq, attr->qp_type,
             attr->cap, attr->sq_sig_all != 0, extra);
    });
  } else if (context) {
    world.objects().edge.add(qp, nullptr);
    world.counters.count(Counter::qps_unmanaged);
  }
  return qp;
}

int Verbs::destroy_qp(ibv_qp* qp) {
  const auto mine = world.objects().qps.erase(qp);
  if (mine)
    mine->close();
  world.objects().edge.remove(qp);
  int rc = 0;
  {
    const provider::Inside inside;
    rc = world.provider.real().ibv_destroy_qp(qp);
  }
  if (!mine)
    return rc;
  if (rc != 0) { // a multicast group still holds it: it stays usable for local operations
    mine->reopen();
    world.objects().qps.insert(qp, mine);
    world.objects().edge.add(qp, mine.get());
    return rc;
  }
  mine->forget();
  return 0;
}

int Verbs::modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  if (const auto mine = world.objects().qps.share(qp))
    return mine->modify(attr, mask);
  const provider::Inside inside;
  return world.provider.real().ibv_modify_qp(qp, attr, mask);
}

int Verbs::query_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) {
  int rc = 0;
  {
    const provider::Inside inside;
    rc = world.provider.real().ibv_query_qp(qp, attr, mask, init);
  }
  if (rc == 0)
    if (Qp* mine = world.objects().qps.find(qp)) {
      if ((mask & IBV_QP_STATE) != 0 && attr->qp_state >= IBV_QPS_SQE)
        mine->look_at_state();
      attr->cap.max_send_wr -= std::min(mine->extra_send(), attr->cap.max_send_wr);
      init->cap.max_send_wr -= std::min(mine->extra_send(), init->cap.max_send_wr);
    }
  return rc;
}

Qp* Verbs::managed(ibv_qp* qp) {
  return world.objects().qps.find(qp);
}

int post_send(Qp& qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  return qp.post_send(wr, bad);
}

int post_recv(Qp& qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return qp.post_recv(wr, bad);
}

int bind_mw(Qp& qp, ibv_mw* mw, ibv_mw_bind* bind) {
  return qp.bind_mw(mw, bind);
}

namespace {

void manage_srq(const std::shared_ptr<Context>& context, ibv_srq* srq, ibv_pd* pd,
                const ibv_srq_attr& attr) {
  Objects& objects = context->world().objects();
  const auto mine = std::make_shared<Srq>(context, context->pd(pd), srq, attr);
  objects.srqs.insert(srq, mine);
  objects.edge.add(srq, mine.get());
}

} // namespace

ibv_srq* Verbs::create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  ibv_srq* srq = nullptr;
  {
    const provider::Inside inside;
    srq = world.provider.real().ibv_create_srq(pd, attr);
  }
  if (srq != nullptr)
    if (const auto context = world.objects().managed(pd->context))
      manage_srq(context, srq, pd, attr->attr);
  return srq;
}

ibv_srq* Verbs::create_srq_ex(ibv_context* verbs, ibv_srq_init_attr_ex* attr) {
  const bool basic =
      (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) == 0 || attr->srq_type == IBV_SRQT_BASIC;
  if (const int why = basic ? 0 : make_unmanaged(verbs, "a shared receive queue of another kind");
      why != 0) {
    errno = why;
    return nullptr;
  }
  ibv_srq* srq = nullptr;
  {
    const provider::Inside inside;
    srq = world.provider.ops(verbs).create_srq_ex(verbs, attr);
  }
  if (srq != nullptr && basic && (attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) != 0)
    if (const auto context = world.objects().managed(verbs))
      manage_srq(context, srq, attr->pd, attr->attr);
  return srq;
}

int Verbs::destroy_srq(ibv_srq* srq) {
  const auto mine = world.objects().srqs.erase(srq);
  world.objects().edge.remove(srq);
  const provider::Inside inside;
  const int rc = world.provider.real().ibv_destroy_srq(srq);
  if (rc != 0 && mine) {
    world.objects().srqs.insert(srq, mine);
    world.objects().edge.add(srq, mine.get());
  } else if (mine) {
    mine->forget();
  }
  return rc;
}

Srq* Verbs::managed(ibv_srq* srq) {
  return world.objects().srqs.find(srq);
}

int post_srq_recv(Srq& srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return srq.post(wr, bad);
}

} // namespace adverb::model
