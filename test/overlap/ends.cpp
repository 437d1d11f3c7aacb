// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "ends.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <poll.h>
#include <sys/mman.h>

namespace {

constexpr uint8_t port = 1;

ibv_mr* add(ibv_pd* pd, uint8_t* from, size_t bytes) {
  ibv_mr* const mr = ibv_reg_mr(pd, from, bytes,
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
  if (mr == nullptr)
    die("ibv_reg_mr");
  return mr;
}

} // namespace

Asked::Asked(int argc, char** argv, double seconds) {
  for (int i = 1; i + 1 < argc; i += 2)
    if (strcmp(argv[i], "--seconds") == 0)
      seconds = strtod(argv[i + 1], nullptr);
    else if (strcmp(argv[i], "--seed") == 0)
      seed = strtoull(argv[i + 1], nullptr, 0), one = true;
    else if (strcmp(argv[i], "--rounds") == 0)
      rounds = strtoull(argv[i + 1], nullptr, 0);
  until = std::chrono::steady_clock::now() +
          std::chrono::duration_cast<std::chrono::steady_clock::duration>(
              std::chrono::duration<double>(seconds));
}

bool Asked::more(uint64_t runs) const {
  return rounds != 0 ? runs < rounds : !one && std::chrono::steady_clock::now() < until;
}

Device::Device() {
  int many = 0;
  list = ibv_get_device_list(&many);
  context = many > 0 ? ibv_open_device(list[0]) : nullptr;
  if (context == nullptr)
    die("ibv_open_device");
}

Device::~Device() {
  ibv_close_device(context);
  ibv_free_device_list(list);
}

Memory::Memory(size_t bytes_)
    : data(static_cast<uint8_t*>(
          mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
      bytes(bytes_) {
  if (data == MAP_FAILED)
    die("mmap");
}

Memory::~Memory() {
  munmap(data, bytes);
}

Completions::Completions(ibv_context* context, bool events) {
  if (events && (channel = ibv_create_comp_channel(context)) == nullptr)
    die("ibv_create_comp_channel");
  if ((cq = ibv_create_cq(context, 4 * Ends::depth, nullptr, channel, 0)) == nullptr)
    die("ibv_create_cq");
}

Completions::~Completions() {
  ibv_ack_cq_events(cq, unacknowledged);
  ibv_destroy_cq(cq);
  if (channel != nullptr)
    ibv_destroy_comp_channel(channel);
}

std::vector<ibv_wc> Completions::take(bool wait) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  std::vector<ibv_wc> all(16);
  const auto poll_some = [&] {
    const int n = ibv_poll_cq(cq, static_cast<int>(all.size()), all.data());
    if (n < 0)
      die("ibv_poll_cq");
    return n;
  };
  int n = poll_some();
  while (n == 0 && wait) {
    if (std::chrono::steady_clock::now() > until) {
      puts("not ok - a completion comes within a minute");
      exit(1);
    }
    if (channel != nullptr) {
      if (ibv_req_notify_cq(cq, 0) != 0)
        die("ibv_req_notify_cq");
      if ((n = poll_some()) != 0)
        break;
      pollfd ready{channel->fd, POLLIN, 0};
      if (poll(&ready, 1, 60'000) != 1) {
        puts("not ok - a thread that sleeps for a completion is woken within a minute");
        exit(1);
      }
      ibv_cq* of = nullptr;
      void* context = nullptr;
      if (ibv_get_cq_event(channel, &of, &context) != 0)
        die("ibv_get_cq_event");
      ++unacknowledged;
    }
    n = poll_some();
  }
  all.resize(static_cast<size_t>(n));
  return all;
}

void Completions::await(size_t count) {
  for (size_t have = 0; have < count;) {
    const std::vector<ibv_wc> done = take(true);
    for (const ibv_wc& wc : done)
      if (wc.status != IBV_WC_SUCCESS) {
        printf("not ok - each request succeeds: %s\n", ibv_wc_status_str(wc.status));
        exit(1);
      }
    have += done.size();
  }
}

Ends::Ends(ibv_context* context, const Shape& shape_)
    : shape(shape_), pd(ibv_alloc_pd(context)), of_a(context, shape.events),
      of_b(context, shape.events), at_a(2 * memory_bytes), at_b(memory_bytes),
      mr_a(add(pd, at_a.data, at_a.bytes)), outer_b(add(pd, at_b.data, at_b.bytes)),
      inner_b(add(pd, at_b.data + inner_from, inner_bytes)) {
  pairs.resize(shape.pairs);
  for (Pair& pair : pairs) {
    pair.srq = shape.srq ? make_srq() : nullptr;
    pair.a = make(of_a, nullptr);
    pair.b = make(of_b, pair.srq);
    connect(pair.a, pair.b);
    connect(pair.b, pair.a);
  }
}

Ends::~Ends() {
  for (const Pair& pair : pairs) {
    ibv_destroy_qp(pair.a);
    ibv_destroy_qp(pair.b);
    if (pair.srq != nullptr)
      ibv_destroy_srq(pair.srq);
  }
  for (ibv_mr* mr : {mr_a, outer_b, inner_b})
    if (ibv_dereg_mr(mr) != 0)
      die("ibv_dereg_mr");
  if (ibv_dealloc_pd(pd) != 0)
    die("ibv_dealloc_pd");
}

ibv_recv_wr* Ends::post_receives(unsigned pair, ibv_recv_wr* list) {
  ibv_recv_wr* bad = nullptr;
  const auto [srq, a, b] = pairs[pair];
  errno = srq != nullptr ? ibv_post_srq_recv(srq, list, &bad) : ibv_post_recv(b, list, &bad);
  if (errno != 0 && errno != ENOMEM)
    die("ibv_post_recv");
  return errno != 0 ? bad : nullptr;
}

ibv_srq* Ends::make_srq() {
  ibv_srq_init_attr init{};
  init.attr.max_wr = depth;
  init.attr.max_sge = sges;
  ibv_srq* const srq = ibv_create_srq(pd, &init);
  if (srq == nullptr)
    die("ibv_create_srq");
  return srq;
}

ibv_qp* Ends::make(const Completions& completions, ibv_srq* receives) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = completions.cq;
  init.srq = receives;
  init.qp_type = shape.uc ? IBV_QPT_UC : IBV_QPT_RC;
  init.cap = {depth, depth, sges, sges, 64};
  ibv_qp* const qp = ibv_create_qp(pd, &init);
  if (qp == nullptr)
    die("ibv_create_qp");
  return qp;
}

void Ends::connect(ibv_qp* qp, const ibv_qp* peer) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = port;
  attr.qp_access_flags =
      shape.atomics ? IBV_ACCESS_REMOTE_ATOMIC
      : shape.uc    ? IBV_ACCESS_REMOTE_WRITE
                    : IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  if (ibv_modify_qp(qp, &attr,
                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0)
    die("to INIT");
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer->qp_num;
  attr.max_dest_rd_atomic = 4;
  attr.min_rnr_timer = 1;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = port;
  attr.ah_attr.grh.hop_limit = 1;
  attr.ah_attr.grh.sgid_index = 1;
  if (ibv_query_gid(qp->context, port, 1, &attr.ah_attr.grh.dgid) != 0)
    die("ibv_query_gid");
  int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (ibv_modify_qp(qp, &attr,
                    shape.uc ? mask : mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0)
    die("to RTR");
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  attr.retry_cnt = attr.rnr_retry = 7;
  attr.max_rd_atomic = 4;
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (ibv_modify_qp(qp, &attr,
                    shape.uc ? mask
                             : mask | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                   IBV_QP_MAX_QP_RD_ATOMIC) != 0)
    die("to RTS");
}
