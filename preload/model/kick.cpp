// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/kick.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "provider/ops.h"
#include "provider/real.h"
#include "world/no_cancel.h"
#include "world/world.h"

namespace adverb::model {

int Kick::open(ibv_pd* pd, ibv_cq* cq, const ibv_ah_attr& ah) {
  const provider::Inside inside;
  const auto& real = world_.provider.real();
  ibv_qp_init_attr init{};
  init.send_cq = cq;
  init.recv_cq = cq;
  init.qp_type = IBV_QPT_RC;
  init.sq_sig_all = 1;
  init.cap.max_send_wr = 2;
  init.cap.max_recv_wr = 1;
  init.cap.max_send_sge = 1;
  init.cap.max_recv_sge = 1;
  ibv_qp* qp = real.ibv_create_qp(pd, &init);
  if (qp == nullptr)
    return provider::failure();

  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = ah.port_num;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  int rc = real.ibv_modify_qp(qp, &attr,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_256;
  attr.dest_qp_num = qp->qp_num;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 12;
  attr.ah_attr.port_num = ah.port_num;
  ibv_port_attr port{};
  if (rc == 0)
    rc = real.ibv_query_port(pd->context, ah.port_num,
                             reinterpret_cast<_compat_ibv_port_attr*>(&port));
  attr.ah_attr.dlid = port.lid;
  if (ah.is_global != 0) {
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.sgid_index = ah.grh.sgid_index;
    attr.ah_attr.grh.hop_limit = 64;
    if (rc == 0 && real.ibv_query_gid(pd->context, ah.port_num, ah.grh.sgid_index,
                                      &attr.ah_attr.grh.dgid) != 0)
      rc = provider::failure();
  }
  if (rc == 0)
    rc = real.ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  attr.max_rd_atomic = 1;
  if (rc == 0)
    rc = real.ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (rc != 0) {
    real.ibv_destroy_qp(qp);
    return rc;
  }
  qp_ = qp;
  qpn_ = qp->qp_num;
  outstanding_[0] = outstanding_[1] = 0;
  return 0;
}

void Kick::close() {
  if (qp_ == nullptr)
    return;
  const provider::Inside inside;
  world_.provider.real().ibv_destroy_qp(qp_);
  qp_ = nullptr;
  outstanding_[0] = outstanding_[1] = 0;
}

bool Kick::fire(Kind kind) {
  int& outstanding = outstanding_[static_cast<size_t>(kind)];
  if (qp_ == nullptr || outstanding != 0)
    return false;
  ibv_qp* const qp = qp_;
  const auto& ops = world_.provider.ops(qp->context);
  const bool solicited = kind == Kind::solicited;
  ibv_send_wr wr{};
  wr.wr_id = static_cast<uint64_t>(kind);
  wr.opcode = solicited ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED | (solicited ? unsigned{IBV_SEND_SOLICITED} : 0U);
  ibv_send_wr* bad = nullptr;
  int rc = 0;
  if (solicited) {
    ibv_recv_wr receive{};
    receive.wr_id = wr.wr_id;
    ibv_recv_wr* bad_receive = nullptr;
    rc = ops.post_recv(qp, &receive, &bad_receive);
  }
  const NoCancel whole; // the program may be polling, which in stock posts nothing
  if (rc == 0)
    rc = ops.post_send(qp, &wr, &bad);
  if (rc != 0) {
    if (world_.log.every("kick", 10))
      world_.log.error("cannot wake a sleeping completion channel: errno {}; the program sleeps "
                       "until its next completion",
                       rc);
    return false;
  }
  outstanding = solicited ? 2 : 1;
  world_.counters.count(observe::Counter::kicks);
  return true;
}

void Kick::landed(const ibv_wc& wc) noexcept {
  if (int& outstanding = outstanding_[wc.wr_id & 1]; outstanding != 0)
    --outstanding;
}

} // namespace adverb::model
