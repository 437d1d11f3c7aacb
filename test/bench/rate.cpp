// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An ordinary verbs program: how fast 64-byte WRITEs go through queue pairs of their own, one for
// each thread, connected to another of this process; and what memory a queue pair takes.
//
//   bench_rate rate THREADS OUTSTANDING SECONDS    prints nanoseconds per request of one thread,
//   and
//                                                  CPU nanoseconds per request of the process
//   bench_rate memory DEPTH                        prints resident bytes per queue pair
#include "ends.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

using bench::Device;
using bench::End;
using bench::must;

struct Pair {
  End from, to;
  Pair(Device& device, uint32_t depth) : from(device, depth), to(device, depth) {
    from.connect(device, to.qp->qp_num);
    to.connect(device, from.qp->qp_num);
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
