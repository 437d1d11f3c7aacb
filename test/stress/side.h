// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One end of the stress test: a context, its completion queues, its queue pairs and the threads
// that post to and poll them all at once.
#pragma once

#include "queue.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <vector>

namespace stress {

struct Options {
  unsigned seconds = 10;
  unsigned operations = 0;     // of each queue pair, however long they take; 0: for so many seconds
  const char* until = nullptr; // there is a file of this name, however long that takes
  unsigned queues = 64;
  unsigned threads = 8;
  bool one_process = false;
  bool churn = false; // a thread that makes, uses and destroys queue pairs all the while
};

// How a completion queue is taken from; every way is somebody's.
enum class Style { plain, together, extended, sleeping };

class Side {
public:
  // `socket` reaches the other side.
  Side(const Options& options, int socket);
  ~Side();
  // Runs all of it; complaints go to complain().
  void run();
  uint64_t operations() const { return operations_; }

private:
  struct Completions {
    Style style;
    ibv_cq* cq = nullptr;
    ibv_cq_ex* extended = nullptr;
    ibv_comp_channel* channel = nullptr;
    std::mutex one_poller; // extended queues allow one at a time
  };
  void connect();
  void work(unsigned thread);
  bool poll(Completions& from, unsigned first_batch);
  bool poll_extended(Completions& from);
  void sleep(Completions& from);
  void hand_out(const ibv_wc& wc);
  void churn();
  void settle();
  template <typename T> void send(const T& value);
  template <typename T> T receive();

  const Options options_;
  const int socket_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  std::vector<std::unique_ptr<Completions>> cqs_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::chrono::steady_clock::time_point end_;
  std::atomic<unsigned> working_{0};
  std::atomic<bool> settled_{false};
  std::atomic<bool> stop_churn_{false};
  std::atomic<uint64_t> progress_{0};
  std::vector<uint64_t> peer_messages_;
  uint64_t operations_ = 0;
};

} // namespace stress
