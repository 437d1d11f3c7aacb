// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What an object that adverb does not manage pays for post and poll. The provider is a few
// instructions in this file; the hooks, the patching and the dispatch are libadverb's own objects.
//
//   bench_interpose ROUNDS    prints "CASE NANOSECONDS" per post+poll, the best of several turns
// Under callgrind it runs every case once and dumps the instructions of each under the case's name.
#include "interpose/dispatch.h"
#include "interpose/patch.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <infiniband/verbs.h>
#include <valgrind/callgrind.h>
#include <valgrind/valgrind.h>

namespace {

volatile unsigned posted;

int post_send(ibv_qp*, ibv_send_wr*, ibv_send_wr**) {
  posted = posted + 1;
  return 0;
}
int post_recv(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) {
  return 0;
}
int poll_cq(ibv_cq*, int, ibv_wc* wc) {
  wc->status = IBV_WC_SUCCESS;
  return 1;
}
int req_notify_cq(ibv_cq*, int) {
  return 0;
}
void wr_start(ibv_qp_ex*) {}
void wr_rdma_write(ibv_qp_ex*, uint32_t, uint64_t) {
  posted = posted + 1;
}
void wr_set_sge(ibv_qp_ex*, uint32_t, uint64_t, uint32_t) {}
int wr_complete(ibv_qp_ex*) {
  return 0;
}
int start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr*) {
  cq->status = IBV_WC_SUCCESS;
  return 0;
}
void end_poll(ibv_cq_ex*) {}

// A context with one queue pair and one completion queue, in both APIs.
struct Stub {
  ibv_device device{};
  verbs_context verbs{};
  ibv_qp qp{};
  ibv_cq cq{};
  ibv_qp_ex qp_ex{};
  ibv_cq_ex cq_ex{};

  Stub() {
    strcpy(device.name, "stub0");
    verbs.sz = sizeof(verbs);
    ibv_context& context = verbs.context;
    context.device = &device;
    context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    context.ops.post_send = post_send;
    context.ops.post_recv = post_recv;
    context.ops.poll_cq = poll_cq;
    context.ops.req_notify_cq = req_notify_cq;
    qp.context = cq.context = qp_ex.qp_base.context = cq_ex.context = &context;
    qp_ex.wr_start = wr_start;
    qp_ex.wr_rdma_write = wr_rdma_write;
    qp_ex.wr_set_sge = wr_set_sge;
    qp_ex.wr_complete = wr_complete;
    cq_ex.start_poll = start_poll;
    cq_ex.end_poll = end_poll;
  }
};

__attribute__((noinline)) void plain(Stub& s, unsigned rounds) {
  ibv_send_wr wr{};
  ibv_wc wc{};
  for (unsigned i = 0; i < rounds; ++i) {
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(&s.qp, &wr, &bad) != 0 || ibv_poll_cq(&s.cq, 1, &wc) != 1)
      abort();
  }
}

__attribute__((noinline)) void extended(Stub& s, unsigned rounds) {
  ibv_poll_cq_attr attr{};
  for (unsigned i = 0; i < rounds; ++i) {
    ibv_wr_start(&s.qp_ex);
    ibv_wr_rdma_write(&s.qp_ex, 1, 2);
    ibv_wr_set_sge(&s.qp_ex, 1, 2, 3);
    if (ibv_wr_complete(&s.qp_ex) != 0 || ibv_start_poll(&s.cq_ex, &attr) != 0)
      abort();
    ibv_end_poll(&s.cq_ex);
  }
}

void measure(const char* name, void (*loop)(Stub&, unsigned), Stub& s, unsigned rounds) {
  using Clock = std::chrono::steady_clock;
  loop(s, 10); // binds what is bound at the first call
  if (RUNNING_ON_VALGRIND != 0) {
    CALLGRIND_ZERO_STATS;
    loop(s, rounds);
    CALLGRIND_DUMP_STATS_AT(name);
    return;
  }
  double best = 1e18;
  for (int turn = 0; turn < 20; ++turn) {
    const auto start = Clock::now();
    loop(s, rounds);
    const std::chrono::duration<double, std::nano> took = Clock::now() - start;
    best = std::min(best, took.count() / rounds);
  }
  printf("%s %.3f\n", name, best);
}

} // namespace

int main(int argc, char** argv) {
  const unsigned rounds = argc > 1 ? static_cast<unsigned>(atoi(argv[1])) : 100000;
  static Stub s;
  measure("plain_stock", plain, s, rounds);
  measure("extended_stock", extended, s, rounds);
  adverb::interpose::patch(&s.verbs.context);
  adverb::interpose::add_qp(&s.qp, nullptr);
  adverb::interpose::add_cq(&s.cq, nullptr);
  if (s.verbs.context.ops.post_send == post_send || s.verbs.context.ops.poll_cq == poll_cq) {
    fputs("bench_interpose: the context was not patched, nothing to measure\n", stderr);
    return 1;
  }
  measure("plain_adverb", plain, s, rounds);
  measure("extended_adverb", extended, s, rounds);
  return 0;
}
