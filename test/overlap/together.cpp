// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// together [--seconds S] [--seed N]: two threads post receives over each other at the same time,
// each to a queue pair of its own; then come the messages, one after the other. See README.md.
#include "ends.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned threads = 2;
constexpr unsigned most = 4; // receives that a thread posts at a time

struct Receive {
  uint32_t at = 0;
  uint32_t bytes = 0;
  bool posted = false;
};

// Each thread has its own: what the other reads was written on the other side of a barrier.
using Turn = std::array<Receive, most>;

class Test {
public:
  Test(ibv_context* context, uint64_t seed)
      : random_(seed), ends_(context, {.seldom = true, .pairs = threads}),
        model_(Ends::memory_bytes) {}

  // How many rounds there were; `wrong_` of them left other bytes than the last messages'.
  void go(Clock::time_point until) {
    std::array<std::thread, threads> posting;
    for (unsigned i = 0; i < threads; ++i)
      posting[i] = std::thread([this, i] { post(i); });
    for (; Clock::now() < until && wrong_ == 0; ++rounds_) {
      const uint32_t spot = below(Ends::memory_bytes - 2 * 65537);
      for (Turn& turn : turns_)
        for (Receive& receive : turn)
          receive = {spot + below(300), sizes[below(sizes.size())], false};
      start_.arrive_and_wait();
      end_.arrive_and_wait();
      send();
    }
    over_ = true;
    start_.arrive_and_wait();
    for (std::thread& thread : posting)
      thread.join();
  }
  void say() const {
    printf("%sok - receives posted at the same time hold what was sent last\n",
           wrong_ == 0 ? "" : "not ");
    printf("# %lu rounds, %lu messages, %lu receives refused, %lu rounds wrong\n1..1\n", rounds_,
           messages_, refused_, wrong_);
  }
  bool passed() const { return wrong_ == 0; }

private:
  static constexpr std::array<uint32_t, 6> sizes = {8, 64, 256, 257, 4096, 65537};

  uint32_t below(size_t end) { return static_cast<uint32_t>(random_() % end); }

  void post(unsigned pair) {
    while (true) {
      start_.arrive_and_wait();
      if (over_)
        return;
      for (Receive& receive : turns_[pair]) {
        ibv_sge sge{reinterpret_cast<uintptr_t>(ends_.at_b.data) + receive.at, receive.bytes,
                    ends_.outer_b->lkey};
        ibv_recv_wr wr{0, nullptr, &sge, 1};
        receive.posted = ends_.post_receives(pair, &wr) == nullptr;
      }
      end_.arrive_and_wait();
    }
  }

  // Of each queue pair in the order of its receives; each is there before the next one is sent.
  void send() {
    std::array<unsigned, threads> next{};
    unsigned sent = 0;
    while (next[0] < most || next[1] < most) {
      unsigned pair = below(threads);
      pair = next[pair] < most ? pair : 1 - pair;
      const Receive& receive = turns_[pair][next[pair]++];
      if (!receive.posted) {
        ++refused_;
        continue;
      }
      std::fill_n(ends_.at_a.data, receive.bytes, static_cast<uint8_t>(++messages_));
      memcpy(&model_[receive.at], ends_.at_a.data, receive.bytes);
      ibv_sge sge{reinterpret_cast<uintptr_t>(ends_.at_a.data), receive.bytes, ends_.mr_a->lkey};
      ibv_send_wr wr{};
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.opcode = IBV_WR_SEND;
      wr.send_flags = IBV_SEND_SIGNALED;
      ibv_send_wr* bad = nullptr;
      if ((errno = ibv_post_send(ends_.pairs[pair].a, &wr, &bad)) != 0)
        die("ibv_post_send");
      ends_.of_a.await(1);
      ++sent;
    }
    ends_.of_b.await(sent);
    wrong_ += memcmp(model_.data(), ends_.at_b.data, model_.size()) != 0 ? 1 : 0;
  }
  std::mt19937_64 random_;
  Ends ends_;
  std::vector<uint8_t> model_;
  std::array<Turn, threads> turns_{};
  std::barrier<> start_{threads + 1}, end_{threads + 1};
  bool over_ = false;
  unsigned long rounds_ = 0, messages_ = 0, refused_ = 0, wrong_ = 0;
};

} // namespace

int main(int argc, char** argv) {
  const Asked asked(argc, argv, 5);
  const Device device;
  bool passed = false;
  {
    Test test(device.context, asked.seed);
    test.go(asked.until);
    test.say();
    passed = test.passed();
  }
  return passed ? 0 : 1;
}
