// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/device_habits.h"
#include "world/world.h"

#include <chrono>
#include <string>
#include <thread>
#include <unistd.h>

namespace adverb::model {

namespace {

constexpr int receives = 4;
// A device flushes within microseconds; one that takes longer than all of these does not count.
constexpr int looks = 1000;
constexpr std::chrono::microseconds between_looks{20};

// A queue pair that goes to ERR with receives posted, so that they are flushed.
bool flush_some(World& world, ibv_qp* qp) {
  const auto& real = world.provider.real();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  if (real.ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0)
    return false;
  ibv_recv_wr wr{};
  ibv_recv_wr* bad = nullptr;
  for (int i = 0; i < receives; ++i)
    if (world.provider.ops(qp->context).post_recv(qp, &wr, &bad) != 0)
      return false;
  attr.qp_state = IBV_QPS_ERR;
  return real.ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0;
}

bool take_one(World& world, ibv_cq* cq) {
  ibv_wc wc{};
  return world.provider.ops(cq->context).poll_cq(cq, 1, &wc) == 1;
}

// The first one shows that the device has got to it, the others are what it leaves or takes along.
bool wait_for_one(World& world, ibv_cq* cq) {
  for (int look = 0; look < looks; ++look) {
    if (take_one(world, cq))
      return true;
    std::this_thread::sleep_for(between_looks);
  }
  return false;
}

} // namespace

bool leaves_completions(World& world, ibv_pd* pd) {
  if (pd == nullptr)
    return false;
  const provider::Inside inside;
  const auto& real = world.provider.real();
  ibv_cq* cq = real.ibv_create_cq(pd->context, receives, nullptr, nullptr, 0);
  if (cq == nullptr)
    return false;
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {1, receives, 1, 1, 0};
  bool leaves = false;
  if (ibv_qp* qp = real.ibv_create_qp(pd, &init)) {
    const bool flushed = flush_some(world, qp) && wait_for_one(world, cq);
    real.ibv_destroy_qp(qp);
    leaves = flushed && take_one(world, cq);
  }
  real.ibv_destroy_cq(cq);
  return leaves;
}

bool posts_by_system_call(const ibv_device* device) {
  const std::string path = device->ibdev_path;
  return access(path.c_str(), F_OK) == 0 && access((path + "/device").c_str(), F_OK) != 0;
}

} // namespace adverb::model
