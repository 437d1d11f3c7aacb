// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Pairs of queue pairs of one process, connected to each other: `a` sends, `b` receives and is
// written to. All of a side complete in one completion queue.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include <infiniband/verbs.h>

[[noreturn]] inline void die(const char* what) {
  perror(what);
  exit(1);
}

// What a program of this folder is told: `--seconds S`, or `--rounds N`, and `--seed N`.
struct Asked {
  Asked(int argc, char** argv, double seconds);
  // After so many runs, which are of as many seeds: so many are asked for, or there is time left; a
  // seed alone is of one.
  bool more(uint64_t runs) const;
  std::chrono::steady_clock::time_point until;
  uint64_t rounds = 0; // however long they take; 0: until then
  uint64_t seed = 1;
  bool one = false; // a seed was named
};

// The first one there is, or the program ends.
struct Device {
  Device();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ibv_device** list = nullptr;
  ibv_context* context = nullptr;
};

struct Shape {
  bool uc = false;      // unreliable connections
  bool atomics = false; // are all that is let in
  bool srq = false;     // b's receives go to a shared queue
  bool events = false;  // completions are slept for
  bool late = false;    // b looks for its own when a has all of its
  bool seldom = false;  // has receives posted, so that its memory may be leased meanwhile
  unsigned pairs = 1;
};

struct Memory {
  explicit Memory(size_t bytes_);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  uint8_t* data;
  size_t bytes;
};

struct Completions {
  Completions(ibv_context* context, bool events);
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;
  // Those there are; `wait`: at least one, which comes within a minute or the program ends.
  std::vector<ibv_wc> take(bool wait);
  // So many more, which succeed, or the program ends.
  void await(size_t count);

  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  unsigned unacknowledged = 0;
};

struct Ends {
  static constexpr uint32_t memory_bytes = 256 << 10;
  static constexpr uint32_t inner_from = 100'000, inner_bytes = 50'000;
  static constexpr uint32_t depth = 64, sges = 3;

  Ends(ibv_context* context, const Shape& shape);
  ~Ends();
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;

  // Null: all are posted; else the one for which there is no memory, and those behind it are not.
  ibv_recv_wr* post_receives(unsigned pair, ibv_recv_wr* list);

  const Shape shape;
  ibv_pd* pd;
  Completions of_a, of_b;
  Memory at_a, at_b;
  ibv_mr* mr_a;
  ibv_mr* outer_b; // all of b's memory,
  ibv_mr* inner_b; // and once more a part of it
  struct Pair {
    ibv_srq* srq = nullptr;
    ibv_qp* a = nullptr;
    ibv_qp* b = nullptr;
  };
  std::vector<Pair> pairs;

private:
  ibv_srq* make_srq();
  ibv_qp* make(const Completions& completions, ibv_srq* receives);
  void connect(ibv_qp* qp, const ibv_qp* peer);
};
