// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// cancelled [--seconds S]: threads that are cancelled (pthread_cancel(3)) while they wait for an
// asynchronous event, or between their requests and polls, or their polls alone; and threads that
// leave the wait by siglongjmp(3), and go on. See README.md.
#include "ends.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csetjmp>
#include <csignal>
#include <pthread.h>

namespace {

using Clock = std::chrono::steady_clock;

struct Waiter {
  ibv_context* context = nullptr;
  std::atomic<bool> there{false};
};

void* wait_for_events(void* argument) {
  auto* const waiter = static_cast<Waiter*>(argument);
  waiter->there = true;
  ibv_async_event event{};
  while (ibv_get_async_event(waiter->context, &event) == 0)
    ibv_ack_async_event(&event);
  return nullptr;
}

thread_local sigjmp_buf out;

void leave(int) {
  siglongjmp(out, 1);
}

struct Worker {
  explicit Worker(ibv_context* context) : ends(context, {}) {}
  Ends ends;
  std::atomic<unsigned long> requests{0};
};

// The `i`th, of sizes that are copied and registered for, from and to all over its memory, and its
// completion.
void request(Worker& worker, unsigned i) {
  Ends& ends = worker.ends;
  constexpr std::array<uint32_t, 4> sizes = {64, 4000, 30'000, 80'000};
  const uint32_t bytes = sizes[i % sizes.size()];
  const uint32_t at = i * 7919 % (Ends::memory_bytes - bytes);
  ibv_sge sge{reinterpret_cast<uintptr_t>(ends.at_a.data) + at, bytes, ends.mr_a->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = i % 3 == 0 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {reinterpret_cast<uintptr_t>(ends.at_b.data) + at, ends.outer_b->rkey};
  ibv_send_wr* bad = nullptr;
  if ((errno = ibv_post_send(ends.pairs[0].a, &wr, &bad)) != 0)
    die("ibv_post_send");
  ends.of_a.await(1);
  ++worker.requests;
}

void* work(void* argument) {
  for (unsigned i = 0;; ++i) {
    request(*static_cast<Worker*>(argument), i);
    pthread_testcancel();
  }
}

// Only polls, for what another thread posts.
void* poll(void* argument) {
  auto* const worker = static_cast<Worker*>(argument);
  for (;;) {
    ibv_wc completion{};
    const int n = ibv_poll_cq(worker->ends.of_a.cq, 1, &completion);
    if (n < 0 || (n == 1 && completion.status != IBV_WC_SUCCESS))
      die("ibv_poll_cq");
    worker->requests += static_cast<unsigned long>(n);
    pthread_testcancel();
  }
}

// Two that `poll` is to see complete, of which the second waits for the first. The poll is what
// posts it.
void request_fenced(Worker& worker) {
  Ends& ends = worker.ends;
  ibv_sge sge{reinterpret_cast<uintptr_t>(ends.at_a.data), 64, ends.mr_a->lkey};
  std::array<ibv_send_wr, 2> list{};
  for (ibv_send_wr& wr : list) {
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
    wr.wr.rdma = {reinterpret_cast<uintptr_t>(ends.at_b.data), ends.outer_b->rkey};
  }
  list[0].opcode = IBV_WR_RDMA_READ;
  list[0].next = &list[1];
  ibv_send_wr* bad = nullptr;
  if ((errno = ibv_req_notify_cq(ends.of_a.cq, 0)) != 0 ||
      (errno = ibv_post_send(ends.pairs[0].a, list.data(), &bad)) != 0)
    die("ibv_post_send");
}

struct Leaver {
  Waiter waiter;
  Worker worker;
};

void* leave_and_work(void* argument) {
  auto* const leaver = static_cast<Leaver*>(argument);
  if (sigsetjmp(out, 1) == 0)
    wait_for_events(&leaver->waiter);
  for (unsigned i = 0; i < 6; ++i)
    request(leaver->worker, i);
  return nullptr;
}

// Ended by pthread_cancel(), as stock's would be.
bool is_cancelled(pthread_t thread) {
  void* result = nullptr;
  pthread_cancel(thread);
  return pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED;
}

} // namespace

int main(int argc, char** argv) {
  const Asked asked(argc, argv, 5);
  const Device device;
  struct sigaction action{};
  action.sa_handler = leave;
  sigaction(SIGUSR1, &action, nullptr);
  unsigned long ended = 0;
  unsigned long requests = 0;
  bool good = true;
  for (; good && Clock::now() < asked.until; ++ended) {
    pthread_t thread{};
    const auto begin = [&](void* (*run)(void*), void* argument) {
      if (pthread_create(&thread, nullptr, run, argument) != 0)
        die("pthread_create");
    };
    const auto await = [](const Waiter& waiter) {
      while (!waiter.there)
        sched_yield();
    };
    Waiter waiter{.context = device.context};
    begin(wait_for_events, &waiter);
    await(waiter);
    good = is_cancelled(thread);

    Worker worker(device.context);
    begin(work, &worker);
    for (const unsigned long enough = 1 + ended * 37 % 200; worker.requests < enough;)
      sched_yield();
    good = is_cancelled(thread) && good;

    Worker polled(device.context);
    begin(poll, &polled);
    unsigned long posted = 0;
    for (const unsigned long enough = 1 + ended * 37 % 400; polled.requests < enough;)
      if (posted - polled.requests <= Ends::depth - 2) {
        request_fenced(polled);
        posted += 2;
      }
    good = is_cancelled(thread) && good;
    polled.ends.of_a.await(posted - polled.requests);

    Leaver leaver{.waiter = {.context = device.context}, .worker = Worker(device.context)};
    begin(leave_and_work, &leaver);
    await(leaver.waiter);
    pthread_kill(thread, SIGUSR1);
    good = pthread_join(thread, nullptr) == 0 && good;
    requests += worker.requests + posted + leaver.worker.requests;
  }
  printf("%sok - threads that wait, poll, or post and poll, can be cancelled, or leave\n",
         good ? "" : "not ");
  printf("# %lu of each, %lu requests\n1..1\n", ended, requests);
  return good ? 0 : 1;
}
