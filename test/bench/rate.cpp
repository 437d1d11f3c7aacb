// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An ordinary verbs program: how fast 64-byte WRITEs go through queue pairs of their own, one for
// each thread, connected to another of this process; and what memory a queue pair takes.
//
//   bench_rate rate THREADS OUTSTANDING SECONDS    prints nanoseconds per request of one thread,
//   and
//                                                  CPU nanoseconds per request of the process
//   bench_rate memory DEPTH                        prints resident bytes per queue pair
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <infiniband/verbs.h>
#include <memory>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

void must(bool good, const char* what) {
  if (!good) {
    fprintf(stderr, "bench_rate: %s failed\n", what);
    exit(1);
  }
}

constexpr int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

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

struct End {
  ibv_cq* cq;
  ibv_qp* qp;
  ibv_mr* mr;
  std::vector<char> memory = std::vector<char>(1 << 16);

  End(Device& device, uint32_t depth) {
    cq = ibv_create_cq(device.context, static_cast<int>(depth), nullptr, nullptr, 0);
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
  void connect(Device& device, const End& to) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    must(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
         "INIT");
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = to.qp->qp_num;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.sgid_index = 1;
    must(ibv_query_gid(device.context, 1, 1, &attr.ah_attr.grh.dgid) == 0, "ibv_query_gid");
    must(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
         "RTR");
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    must(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0,
         "RTS");
  }
};

struct Pair {
  End from, to;
  Pair(Device& device, uint32_t depth) : from(device, depth), to(device, depth) {
    from.connect(device, to);
    to.connect(device, from);
  }
};

// Posts and polls until told to stop; requests done.
uint64_t run(Pair& pair, uint64_t outstanding, const std::atomic<bool>& stop) {
  ibv_sge sge{reinterpret_cast<uintptr_t>(pair.from.memory.data()), 64, pair.from.mr->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {reinterpret_cast<uintptr_t>(pair.to.memory.data()), pair.to.mr->rkey};
  uint64_t posted = 0, done = 0;
  ibv_wc wc[16];
  while (!stop.load(std::memory_order_relaxed) || done != posted) {
    while (posted - done < outstanding && !stop.load(std::memory_order_relaxed)) {
      ibv_send_wr* bad = nullptr;
      wr.wr_id = posted;
      must(ibv_post_send(pair.from.qp, &wr, &bad) == 0, "ibv_post_send");
      ++posted;
    }
    const int n = ibv_poll_cq(pair.from.cq, 16, wc);
    must(n >= 0, "ibv_poll_cq");
    for (int i = 0; i < n; ++i)
      must(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id == done++, "a completion");
  }
  return done;
}

double cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

void measure(std::vector<std::unique_ptr<Pair>>& pairs, uint64_t outstanding, double seconds,
             bool show) {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> done{0};
  std::vector<std::thread> threads;
  const double cpu = cpu_ns();
  const auto start = Clock::now();
  for (auto& pair : pairs)
    threads.emplace_back([&] { done += run(*pair, outstanding, stop); });
  std::this_thread::sleep_until(start + std::chrono::duration<double>(seconds));
  stop = true;
  for (auto& thread : threads)
    thread.join();
  const auto ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  const auto requests = static_cast<double>(done.load());
  if (show)
    printf("%.1f %.1f\n", ns * static_cast<double>(pairs.size()) / requests,
           (cpu_ns() - cpu) / requests);
}

long resident() {
  FILE* file = fopen("/proc/self/statm", "r");
  long total = 0, pages = 0;
  must(file != nullptr && fscanf(file, "%ld %ld", &total, &pages) == 2, "statm");
  fclose(file);
  return pages * sysconf(_SC_PAGESIZE);
}

} // namespace

int main(int argc, char** argv) {
  Device device;
  if (argc == 5 && strcmp(argv[1], "rate") == 0) {
    const auto outstanding = strtoull(argv[3], nullptr, 0);
    std::vector<std::unique_ptr<Pair>> pairs;
    for (int i = 0; i < atoi(argv[2]); ++i)
      pairs.push_back(std::make_unique<Pair>(device, 128));
    measure(pairs, outstanding, atof(argv[4]) / 4, false); // peers find each other
    measure(pairs, outstanding, atof(argv[4]), true);
  } else if (argc == 3 && strcmp(argv[1], "memory") == 0) {
    const auto depth = static_cast<uint32_t>(atoi(argv[2]));
    Pair first(device, depth); // what a process has once
    constexpr int n = 32;
    std::vector<std::unique_ptr<Pair>> pairs;
    const long before = resident();
    for (int i = 0; i < n; ++i)
      pairs.push_back(std::make_unique<Pair>(device, depth));
    printf("%ld\n", (resident() - before) / (2 * n));
  } else {
    fputs("usage: bench_rate rate THREADS OUTSTANDING SECONDS | memory DEPTH\n", stderr);
    return 2;
  }
  // Objects go with the process.
  fflush(stdout);
  _exit(0);
}
