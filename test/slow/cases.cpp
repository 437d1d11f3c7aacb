// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "cases.h"

#include <algorithm>

namespace slow {

const char* word(Habit habit) {
  switch (habit) {
  case Habit::polls:
    return "polls";
  case Habit::sleeps:
    return "sleeps";
  default:
    return "asks";
  }
}

const char* said(Habit habit) {
  switch (habit) {
  case Habit::polls:
    return "its owner polls";
  case Habit::sleeps:
    return "its owner calls no verb";
  default:
    return "its owner has requests of its own";
  }
}

const char* word(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ ? "read" : opcode == IBV_WR_RDMA_WRITE ? "write" : "fetch_add";
}

const char* said(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ ? "READ" : opcode == IBV_WR_RDMA_WRITE ? "WRITE" : "FETCH_ADD";
}

double Times::median() const {
  std::vector<double> sorted = all_;
  std::sort(sorted.begin(), sorted.end());
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

double Times::longest() const {
  return all_.empty() ? 0 : *std::max_element(all_.begin(), all_.end());
}

size_t lead(size_t bytes) {
  return bytes > page_bytes ? margin / 4 : 0;
}

Request slow_request(End& end, ibv_wr_opcode opcode, size_t which, size_t bytes) {
  return {opcode,
          end.fast().memory + scratch,
          end.fast().mr->lkey,
          bytes,
          end.peer_slow_page(which) - lead(bytes),
          end.peer_slow().rkey};
}

Request small_request(End& end, unsigned queue, bool read) {
  const size_t at = size_t{queue} * 2 * small;
  return {read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
          end.fast().memory + at,
          end.fast().mr->lkey,
          small,
          end.peer_fast().memory + at + (read ? small : 0),
          end.peer_fast().rkey};
}

void Waits::add(const Waits& more) {
  longest = std::max(longest, more.longest);
  requests += more.requests;
  late += more.late;
}

Waits traffic(End& end, const std::vector<unsigned>& queues, const std::vector<unsigned>& cqs,
              uint64_t count, const std::function<bool()>& begun,
              const std::function<Request(unsigned queue, bool read)>& of) {
  struct Asker {
    unsigned queue = 0;
    bool under_way = false, counts = false; // it was posted after it has begun
    uint64_t done = 0;
  };
  Waits waits;
  std::vector<Asker> askers;
  for (const unsigned queue : queues)
    askers.push_back({queue});
  const auto end_of_patience = Clock::now() + hangs;
  auto moved = Clock::now();
  for (bool counts = false;;) {
    counts = counts || begun();
    bool over = counts;
    for (Asker& asker : askers) {
      Queue& q = end.queue(asker.queue);
      if (asker.under_way && end.idle(asker.queue)) {
        asker.under_way = false;
        asker.done += asker.counts ? 1 : 0;
        moved = Clock::now();
        const double wait = ms(q.done_at - q.posted_at);
        waits.add({wait, 1, wait > 1 ? uint64_t{1} : 0});
      }
      if (!asker.under_way && (!counts || asker.done < count)) {
        const bool read = waits.requests % 2 == 1;
        asker.counts = counts;
        end.post(asker.queue, of ? of(asker.queue, read) : small_request(end, asker.queue, read));
        asker.under_way = true;
      }
      over = over && !asker.under_way;
    }
    if (over)
      break;
    // Without a yield in between: Linux 6.18 has who yields wait for a whole slice each time, of
    // which many in a row are paid for later, by tens of milliseconds.
    for (const unsigned cq : cqs)
      end.poll(cq);
    must_not_hang(Clock::now() < moved + hangs, "requests of other queue pairs do not complete");
    must_not_hang(counts || Clock::now() < end_of_patience, "the slow page is not asked for");
  }
  for (const unsigned i : queues)
    if (end.queue(i).status != 0)
      complain("queue pair %u: %s", i,
               ibv_wc_status_str(static_cast<ibv_wc_status>(end.queue(i).status.load())));
  return waits;
}

void warm_up(End& end) {
  for (unsigned i = 0; i < end.queues(); ++i)
    for (const bool read : {false, true}) {
      end.post(i, small_request(end, i % 64, read));
      if (!end.wait(i))
        complain("the first request of queue pair %u fails", i);
    }
  // And the keys of the region with the slow pages, at an ordinary one.
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    Request request = slow_request(end, opcode, 0, small);
    request.remote = end.peer_slow().memory;
    end.post(slow_queue, request);
    if (!end.wait(slow_queue))
      complain("a request of the slow region fails at an ordinary page");
  }
}

} // namespace slow
