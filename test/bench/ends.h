// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the ordinary programs of the benches have in common: a device, and ends of RC connections on
// it.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <infiniband/verbs.h>
#include <unistd.h>
#include <vector>

namespace bench {

inline void must(bool good, const char* what) {
  if (!good) {
    fprintf(stderr, "bench: %s failed\n", what);
    exit(1);
  }
}

// Both processes of a bench say something and hear the other, over a socket pair.
template <typename T> T exchange(int socket, const T& mine) {
  T theirs{};
  must(write(socket, &mine, sizeof mine) == sizeof mine &&
           read(socket, &theirs, sizeof theirs) == sizeof theirs,
       "the other process");
  return theirs;
}

inline constexpr int rights =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
inline constexpr int rights_and_atomics = rights | IBV_ACCESS_REMOTE_ATOMIC;

struct Device {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  Device() {
    int n = 0;
    ibv_device** list = ibv_get_device_list(&n);
    must(n > 0, "ibv_get_device_list");
    context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    must(context != nullptr, "ibv_open_device");
    pd = ibv_alloc_pd(context);
    must(pd != nullptr, "ibv_alloc_pd");
  }
};

// One queue pair with its completion queue and a region.
struct End {
  ibv_cq* cq;
  ibv_qp* qp;
  ibv_mr* mr;
  std::vector<char> memory;

  // `events`: where the completion queue, once armed, tells of completions.
  End(Device& device, uint32_t depth, size_t bytes = 1 << 16, ibv_comp_channel* events = nullptr)
      : memory(bytes) {
    cq = ibv_create_cq(device.context, static_cast<int>(depth), nullptr, events, 0);
    must(cq != nullptr, "ibv_create_cq");
    mr = ibv_reg_mr(device.pd, memory.data(), memory.size(), rights);
    must(mr != nullptr, "ibv_reg_mr");
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {depth, depth, 1, 1, 0};
    qp = ibv_create_qp(device.pd, &init);
    must(qp != nullptr, "ibv_create_qp");
  }
  // `gid`: the peer's; null: it is on this host. `access`: what the peer may do.
  void connect(Device& device, uint32_t peer, const ibv_gid* gid = nullptr, uint8_t timeout = 14,
               int access = rights) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = static_cast<unsigned>(access);
    must(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
         "INIT");
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.sgid_index = 1;
    if (gid != nullptr)
      attr.ah_attr.grh.dgid = *gid;
    else
      must(ibv_query_gid(device.context, 1, 1, &attr.ah_attr.grh.dgid) == 0, "ibv_query_gid");
    must(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
         "RTR");
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = timeout;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    must(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0,
         "RTS");
  }
};

} // namespace bench
