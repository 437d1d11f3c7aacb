// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// alongside [--seconds S] [--seed N]: four threads with queue pairs of their own, which with their
// completion queues, regions and sometimes the device they opened come and go while the others' are
// at work. See README.md.
#include "ends.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned threads = 4;
constexpr std::array<uint32_t, 5> sizes = {8, 200, 256, 3000, 60'000};

std::atomic<unsigned long> lives{0}, requests{0}, wrong{0};

// What a thread makes of its objects in one life of theirs.
class Life {
public:
  Life(ibv_context* context, std::mt19937_64& random)
      : random_(random), ends_(context, {.srq = below(2) == 0, .events = below(4) == 0}) {}

  void go() {
    for (uint32_t turn = 0, turns = 1 + below(3); turn < turns; ++turn) {
      const uint32_t bytes = sizes[below(sizes.size())];
      std::fill_n(ends_.at_a.data, bytes, static_cast<uint8_t>(below(255) + 1));
      receive(0, bytes);
      // Over it: where that one stands in staging, adverb looks at all queues there are.
      const bool second = below(2) == 0 && receive(0, below(2) == 0 ? 64U : bytes);
      request(IBV_WR_SEND, 0, bytes, 0);
      request(IBV_WR_RDMA_WRITE, 0, bytes, 100'000);
      request(IBV_WR_RDMA_READ, 200'000, bytes, 100'000);
      ends_.of_a.await(3);
      ends_.of_b.await(1);
      check(ends_.at_b.data, bytes);
      check(ends_.at_b.data + 100'000, bytes);
      check(ends_.at_a.data + 200'000, bytes);
      if (second)
        break; // what is left of its receives goes with the queue pair
    }
    // So do these, and a region over them is made meanwhile.
    receive(0, 64);
    const int access = IBV_ACCESS_LOCAL_WRITE;
    ibv_mr* const more = ibv_reg_mr(ends_.pd, ends_.at_b.data, ends_.at_b.bytes / 2, access);
    if (more == nullptr)
      die("ibv_reg_mr");
    ibv_dereg_mr(more);
  }

private:
  uint32_t below(size_t end) { return static_cast<uint32_t>(random_() % end); }

  bool receive(uint32_t at, uint32_t bytes) {
    ibv_sge sge{reinterpret_cast<uintptr_t>(ends_.at_b.data) + at, bytes, ends_.outer_b->lkey};
    ibv_recv_wr wr{0, nullptr, &sge, 1};
    return ends_.post_receives(0, &wr) == nullptr;
  }

  void request(ibv_wr_opcode opcode, uint32_t from, uint32_t bytes, uint32_t to) {
    ibv_sge sge{reinterpret_cast<uintptr_t>(ends_.at_a.data) + from, bytes, ends_.mr_a->lkey};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(ends_.at_b.data) + to;
    wr.wr.rdma.rkey = ends_.outer_b->rkey;
    ibv_send_wr* bad = nullptr;
    if ((errno = ibv_post_send(ends_.pairs[0].a, &wr, &bad)) != 0)
      die("ibv_post_send");
    ++requests;
  }

  void check(const uint8_t* at, uint32_t bytes) const {
    wrong += memcmp(at, ends_.at_a.data, bytes) != 0 ? 1 : 0;
  }

  std::mt19937_64& random_;
  Ends ends_;
};

} // namespace

int main(int argc, char** argv) {
  const Asked asked(argc, argv, 5);
  const Device device;
  std::array<std::thread, threads> all;
  for (unsigned i = 0; i < threads; ++i)
    all[i] = std::thread([&, number = asked.seed * threads + i] {
      std::mt19937_64 random(number);
      for (; Clock::now() < asked.until; ++lives) {
        // Some open the device anew, which then is closed with all there was of it.
        ibv_context* const own = random() % 4 == 0 ? ibv_open_device(device.list[0]) : nullptr;
        Life(own != nullptr ? own : device.context, random).go();
        if (own != nullptr && ibv_close_device(own) != 0)
          die("ibv_close_device");
      }
    });
  for (std::thread& one : all)
    one.join();
  printf("%sok - each request completes, and brings its bytes, while others' queues end\n",
         wrong == 0 ? "" : "not ");
  printf("# %lu lives, %lu requests, %lu wrong\n1..1\n", lives.load(), requests.load(),
         wrong.load());
  return wrong == 0 ? 0 : 1;
}
