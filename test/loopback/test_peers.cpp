// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Between processes, and between threads.
#include "test_children.h"

#include <atomic>
#include <thread>

namespace {

// Serves as a target until told to stop.
void serve(int socket) {
  End end;
  Address peer;
  meet(end, socket, peer, 8);
  hear<char>(socket);
}

} // namespace

TEST_CASE("processes reach each other's memory") {
  Child child(serve);
  End end;
  Address peer;
  meet(end, child.socket, peer);
  for (uint32_t length : {1u, 8u, 4097u, 60000u}) {
    for (uint32_t i = 0; i < length; ++i)
      end.buffer[i] = static_cast<char>(i + length);
    const std::vector<char> sent(end.buffer.begin(), end.buffer.begin() + length);
    REQUIRE(end.post(IBV_WR_RDMA_WRITE, peer, 0, 0, length) == 0);
    REQUIRE(end.completion().status == IBV_WC_SUCCESS);
    std::fill(end.buffer.begin(), end.buffer.end(), 'z');
    REQUIRE(end.post(IBV_WR_RDMA_READ, peer, 0, 0, length) == 0);
    REQUIRE(end.completion().status == IBV_WC_SUCCESS);
    CHECK(std::equal(sent.begin(), sent.end(), end.buffer.begin()));
  }
  REQUIRE(end.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, peer, 0, 1) == 0);
  CHECK(end.completion().status == IBV_WC_SUCCESS);
  tell(child.socket, 'q');
}

TEST_CASE("a stopped peer's memory is still there") {
  Child child(serve);
  End end;
  Address peer;
  meet(end, child.socket, peer);
  kill(child.pid, SIGSTOP);
  int status = 0;
  REQUIRE(waitpid(child.pid, &status, WUNTRACED) == child.pid);
  REQUIRE(end.post(IBV_WR_RDMA_WRITE, peer, 0, 0, 4096) == 0);
  CHECK(end.completion().status == IBV_WC_SUCCESS);
  REQUIRE(end.post(IBV_WR_RDMA_READ, peer, 0, 0, 4096) == 0);
  CHECK(end.completion().status == IBV_WC_SUCCESS);
}

TEST_CASE("a killed peer is a retry error, reaped or not") {
  Child child(serve);
  End end;
  Address peer;
  meet(end, child.socket, peer);
  REQUIRE(end.post(IBV_WR_RDMA_WRITE, peer, 0, 0, 8) == 0);
  REQUIRE(end.completion().status == IBV_WC_SUCCESS);
  kill(child.pid, SIGKILL);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOWAIT); // a zombie now
  const ibv_wr_opcode opcode = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_SEND);
  for (uint64_t id = 0; id < 2; ++id)
    REQUIRE(end.post(opcode, peer, 0, 0, 8, IBV_SEND_SIGNALED, id) == 0);
  CHECK(end.completion().status == IBV_WC_RETRY_EXC_ERR);
  CHECK(end.completion().status == IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE("a peer killed in mid-traffic leaves the fabric usable") {
  for (int round = 0; round < 5; ++round) {
    Child child([](int socket) {
      End end;
      Address peer;
      meet(end, socket, peer);
      for (uint64_t i = 0;; ++i) {
        end.post(IBV_WR_RDMA_WRITE, peer, 0, 0, 4096, 0);
        end.post(IBV_WR_RDMA_WRITE_WITH_IMM, peer, 0, 0, 64);
        ibv_wc wc;
        while (ibv_poll_cq(end.cq, 1, &wc) > 0) {
        }
      }
    });
    End end;
    Address peer;
    meet(end, child.socket, peer, 60);
    for (int i = 0; i < 500; ++i) {
      REQUIRE(end.completion().status == IBV_WC_SUCCESS);
      REQUIRE(end.receive(0, 64) == 0);
    }
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
    child.pid = -1;
  } // End's destructor proves that nothing waits for the dead
  Pair again;
  REQUIRE(again.a.post(IBV_WR_RDMA_WRITE, again.b.address(), 0, 0, 8) == 0);
  CHECK(again.a.completion().status == IBV_WC_SUCCESS);
}

TEST_CASE("an aligned eight-byte WRITE is never seen torn") {
  Child child([](int socket) {
    End end;
    Address peer;
    meet(end, socket, peer);
    auto* word = reinterpret_cast<uint64_t*>(end.buffer.data());
    while (hear<char>(socket) == 'w') {
      for (uint64_t i = 0; i < 30000; ++i) {
        *word = i % 2 == 0 ? ~uint64_t{0} : 0;
        end.post(IBV_WR_RDMA_WRITE, peer, 0, 64, 8);
        end.completion();
      }
      tell(socket, 'd');
    }
  });
  End end;
  Address peer;
  meet(end, child.socket, peer);
  std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(end.buffer.data() + 64));
  std::atomic<bool> stop{false};
  uint64_t torn = 0;
  std::atomic<uint64_t> others{0}; // looks that met another word than the one before
  std::thread watcher([&] {
    for (uint64_t before = 0; !stop.load(std::memory_order_relaxed);) {
      const uint64_t value = word.load(std::memory_order_relaxed);
      torn += value != 0 && value != ~uint64_t{0};
      others += value != before;
      before = value;
    }
  });
  // Until the watcher has looked while the other one wrote.
  do {
    tell(child.socket, 'w');
    REQUIRE(hear<char>(child.socket) == 'd');
  } while (others < 100);
  tell(child.socket, 'e');
  stop = true;
  watcher.join();
  CHECK(torn == 0);
}

TEST_CASE("a child after fork joins the fabric by itself") {
  End parent; // has a progress thread; the child will not
  Child child(serve);
  End end;
  Address peer;
  meet(end, child.socket, peer);
  REQUIRE(end.post(IBV_WR_RDMA_WRITE, peer, 0, 0, 8) == 0);
  CHECK(end.completion().status == IBV_WC_SUCCESS);
}

TEST_CASE("threads lose and double nothing") {
  constexpr int kThreads = 4, kPairs = 4;
  constexpr uint64_t kMessages = 2000;
  std::vector<std::thread> threads;
  std::atomic<uint64_t> good{0};
  std::vector<std::unique_ptr<Pair>> pairs; // Catch2 is for one thread: made and checked here
  for (int i = 0; i < kThreads * kPairs; ++i)
    pairs.push_back(std::make_unique<Pair>());
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t m = 0; m < kMessages; ++m) {
        Pair& p = *pairs[static_cast<uint64_t>(t) * kPairs + m % kPairs];
        if (p.b.receive(0, 4096, m) != 0 ||
            p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 512, IBV_SEND_SIGNALED, m) != 0)
          return;
        if (p.a.completion().wr_id == m && p.b.completion().wr_id == m)
          ++good;
      }
    });
  for (auto& thread : threads)
    thread.join();
  CHECK(good == kThreads * kMessages);
}

TEST_CASE("registration may come and go under fire") {
  Pair p;
  std::atomic<bool> stop{false};
  std::vector<char> other(8192);
  std::thread churn([&] {
    while (!stop) {
      ibv_mr* mr = ibv_reg_mr(p.b.pd, other.data(), other.size(), p.b.options.region_access);
      ibv_dereg_mr(mr);
    }
  });
  bool all = true;
  for (int i = 0; i < 2000; ++i) {
    p.a.post(IBV_WR_RDMA_WRITE, p.b.address(), 0, 0, 4096);
    all = all && p.a.completion().status == IBV_WC_SUCCESS;
  }
  stop = true;
  churn.join();
  CHECK(all);
}
