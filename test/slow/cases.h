// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What is promised of a process one of whose pages is slow to come. Each case is two halves that
// run at the same time, in the process that owns the memory asked for and in the one that asks.
#pragma once

#include "end.h"

#include <functional>
#include <string>
#include <vector>

namespace slow {

struct Case {
  std::string name;
  std::string promise;
  Setup setup;
  std::function<void(End&)> owner, initiator;
  // Why the case has no meaning where registered memory has all its pages; empty where it has.
  std::string not_pinned;
};

// The other queue pairs of the process, and the order of the slow one.
void add_queue_cases(const Options& options, std::vector<Case>& to);
// What the process whose page is slow calls meanwhile, its fault handler and its threads.
void add_owner_cases(const Options& options, std::vector<Case>& to);
// The end of regions and queue pairs under a slow request.
void add_end_cases(const Options& options, std::vector<Case>& to);

// How a program owns memory: one thread polls its completion queues all the while, nobody calls any
// verb, or it has requests of its own to the peer.
enum class Habit { polls, sleeps, asks };
const char* word(Habit habit); // for names
const char* said(Habit habit); // for promises

const char* word(ibv_wr_opcode opcode);
const char* said(ibv_wr_opcode opcode);

// How long one of many calls took.
class Times {
public:
  template <typename F> void time(F&& f) {
    const auto from = Clock::now();
    f();
    all_.push_back(ms(Clock::now() - from));
  }
  size_t count() const { return all_.size(); }
  double median() const;
  double longest() const;

private:
  std::vector<double> all_;
};

// A request for slow page `which` of the peer, on the slow queue pair: `bytes` with the page in
// them.
Request slow_request(End& end, ibv_wr_opcode opcode, size_t which, size_t bytes);
// One of ordinary memory, with cells of each queue pair's own.
Request small_request(End& end, unsigned queue, bool read);
// Where a slow request begins, before the start of the page.
size_t lead(size_t bytes);

struct Waits {
  double longest = 0; // ms from the post to the completion
  uint64_t requests = 0;
  uint64_t late = 0; // longer than 1 ms
  void add(const Waits& more);
};
// Requests on these queue pairs, one at a time on each: `count` more of each from when `begun` says
// so on. Small ones of ordinary memory, or those that `of` makes.
Waits traffic(
    End& end, const std::vector<unsigned>& queues, const std::vector<unsigned>& cqs, uint64_t count,
    const std::function<bool()>& begun = [] { return true; },
    const std::function<Request(unsigned queue, bool read)>& of = {});

// Two requests on each queue pair, so that links stand and keys are known.
inline constexpr unsigned warm_requests = 2;
void warm_up(End& end);

} // namespace slow
