// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One process of the test: a device, two completion queues, queue pairs to the other process,
// regions of which one has slow pages, and a socket to agree with the other one by.
#pragma once

#include "pages.h"

#include <array>
#include <memory>
#include <vector>

#include <infiniband/verbs.h>

namespace slow {

struct Options {
  uint64_t requests = 200; // of each other queue pair while a page is away
  size_t pages = 6;        // slow pages in a row
  size_t many = 200;       // slow pages at once
  bool strict = false;     // also judge the figures that only an idle machine keeps
  bool pinned = false;     // whoever registers memory brings its pages, as a device that pins does
};

// Counts, and says why on stdout. Any thread.
void complain(const char* format, ...) __attribute__((format(printf, 1, 2)));
unsigned complaints();
void note(const char* format, ...) __attribute__((format(printf, 1, 2)));
// Ends the process.
void must(bool good, const char* what);
// The same where something never comes: the other process, too, ends then.
void must_not_hang(bool came, const char* what);

inline double ms(Clock::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

struct Region {
  std::byte* memory = nullptr;
  size_t bytes = 0;
  ibv_mr* mr = nullptr;
};

struct RemoteRegion {
  uint64_t memory = 0;
  uint32_t rkey = 0;
};

// What a case needs.
struct Setup {
  bool slow_at_owner = true;  // else at the initiator
  bool slow_is_remote = true; // the region with the slow pages may be asked for by the peer
  size_t slow_pages = 0;
  unsigned extra_queues = 0; // beside `usual_queues`
  unsigned known = 0;        // regions the peer is to use before
};

// Queue 0, by the name of `slow_queue`, asks for the slow pages. 1 shares its completion queue; 2
// and 3 and all others have another one.
inline constexpr unsigned slow_queue = 0;
inline constexpr unsigned usual_queues = 4;
inline constexpr uint32_t depth = 16; // requests of a queue pair under way
inline constexpr size_t small = 64;
inline constexpr size_t large = 40 * 1024;        // over several messages
inline constexpr size_t margin = 16 * page_bytes; // of ordinary pages before the slow ones
inline constexpr size_t scratch = 128 * 1024;     // offset in the fast region, for large requests

struct Queue {
  ibv_qp* qp = nullptr;
  std::atomic<uint64_t> posted{0}, done{0};
  std::atomic<int> status{0}; // of the last one that failed
  Clock::time_point posted_at, done_at;
};

struct Request {
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
  const std::byte* local = nullptr;
  uint32_t lkey = 0;
  size_t bytes = 0;
  uint64_t remote = 0;
  uint32_t rkey = 0;
  unsigned flags = 0;
};

class End {
public:
  End(const Options& options, const Setup& setup, bool owner, int socket);
  ~End();
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  const Options& options() const { return options_; }
  Region& fast() { return fast_; }
  Region& slow_region() { return slow_; }
  Region& known(size_t i) { return known_[i]; }
  const RemoteRegion& peer_fast() const { return peer_[0]; }
  const RemoteRegion& peer_slow() const { return peer_[1]; }
  const RemoteRegion& peer_known(size_t i) const { return peer_[2 + i]; }
  SlowPages* pages() { return pages_.get(); }
  std::byte* slow_page(size_t i) { return slow_.memory + slow_at(i); }
  uint64_t peer_slow_page(size_t i) const { return peer_slow().memory + slow_at(i); }

  Queue& queue(unsigned i) { return *queues_[i]; }
  unsigned queues() const { return static_cast<unsigned>(queues_.size()); }
  ibv_cq* cq(unsigned i) const { return cqs_[i]; }
  ibv_pd* pd() const { return pd_; }
  static unsigned cq_of(unsigned queue) { return queue < 2 ? 0 : 1; }

  Region make_region(size_t bytes);
  void end_region(Region& region);
  ibv_qp* make_qp(unsigned cq);
  void destroy_queue(unsigned i);

  // Always signaled.
  void post(unsigned queue, const Request& request);
  // Takes what one completion queue, or each, has; whether that was anything. Any thread.
  bool poll(unsigned cq);
  bool poll();
  // The same, of at most so many, which the device's library writes there.
  bool poll(unsigned cq, ibv_wc* into, int most);
  bool idle(unsigned queue) { return queues_[queue]->done == queues_[queue]->posted; }
  bool has_room(unsigned queue) { return queues_[queue]->posted - queues_[queue]->done < depth; }
  // Polls until the queue pair has nothing under way; says whether all that it had went well.
  bool wait(unsigned queue);

  // A thread of the program that polls all its completion queues in a loop, as many programs do.
  void start_polling();
  void stop_polling();
  // Until that thread has polled each so many times more.
  void await_polls(uint64_t more);

  template <typename T> void tell(const T& value) { send_bytes(&value, sizeof value); }
  template <typename T> T hear() {
    T value{};
    receive_bytes(&value, sizeof value);
    return value;
  }
  // Both are here.
  void meet();
  // At the end that has the slow pages: so many were asked for, which the other end hears, and has
  // heard() of. All that the other end then does before its go_on() happens while they are away.
  void away(size_t asked);
  void heard() { hear<char>(); }
  void go_on() { tell('.'); }
  // Whether the other one is there already.
  bool awaited();

private:
  static size_t slow_at(size_t i) { return margin + i * SlowPages::stride * page_bytes; }
  void connect();
  void bring_up(ibv_qp* qp, uint32_t peer);
  void send_bytes(const void* bytes, size_t count);
  void receive_bytes(void* bytes, size_t count);

  const Options options_;
  const int socket_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  std::array<ibv_cq*, 2> cqs_{};
  std::vector<std::unique_ptr<Queue>> queues_;
  Region fast_, slow_;
  std::vector<Region> known_;
  std::vector<RemoteRegion> peer_;
  std::unique_ptr<SlowPages> pages_;
  std::thread poller_;
  std::atomic<bool> polled_by_many_{false}, stop_polling_{false};
  std::atomic<uint64_t> polls_{0}; // of all completion queues
};

} // namespace slow
