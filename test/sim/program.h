// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One program of a schedule, under adverb: what it posts, polls and looks at is random, what it may
// rely on is not. It keeps the rules of a program: a buffer that a request reads or fills is left
// alone until the request is over, and no more is outstanding than its queues take.
#pragma once

#include "choices.h"
#include "device.h"
#include "fibre.h"
#include "habits.h"
#include "links.h"
#include "memory/monitor.h"
#include "oracle.h"
#include "pages.h"
#include "registration/recalls.h"
#include "step.h"
#include "views.h"

#include "model/edge.h"
#include "model/verbs.h"
#include "policy/policy.h"
#include "world/world.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace sim {

struct Clock final : adverb::Clock {
  std::chrono::nanoseconds now() noexcept override { return time; }
  std::chrono::nanoseconds time{1};
};

struct Entropy final : adverb::Entropy {
  explicit Entropy(uint64_t first = 1, uint64_t step = 1) : next(first), step(step) {}
  void fill(void* to, size_t bytes) noexcept override {
    for (size_t i = 0; i < bytes; ++i)
      static_cast<unsigned char*>(to)[i] = static_cast<unsigned char>(next >> 8 * (i % 8));
    next += step;
  }
  uint64_t next;
  const uint64_t step;
};

// The program's mappings, which it changes by Pages and says so; in one of four programs nobody
// hears.
class Mappings final : public adverb::memory::Monitor {
public:
  explicit Mappings(bool heard) : heard_(heard) {}
  bool watch(adverb::memory::Range what, adverb::memory::Range) override {
    return heard_ && Pages::all_there(what.from, what.to - what.from);
  }
  void unwatch(adverb::memory::Range) noexcept override {}
  void changed(const std::byte* from, size_t bytes) {
    // Whoever asks meanwhile waits for it, which no fibre can.
    const uint32_t left = std::exchange(fibres::countdown, 0);
    begin();
    tell({reinterpret_cast<uintptr_t>(from), reinterpret_cast<uintptr_t>(from) + bytes}, false);
    end();
    fibres::countdown = left;
  }

private:
  const bool heard_;
};

// Tasks in their order, timers at their time, jobs in any, as each may sleep; each a step of the
// schedule's.
struct Service final : adverb::service::Service {
  explicit Service(Clock& clock) : clock(clock) {}
  void watch(int, uint32_t, std::function<void(uint32_t)>) override {}
  void change(int, uint32_t) override {}
  void unwatch(int) override {}
  void run(std::function<void()> task) override { tasks.push_back(std::move(task)); }
  uint64_t after(std::chrono::nanoseconds delay, std::function<void()> task) override {
    timers.emplace(clock.time + delay, std::pair{++last_timer, std::move(task)});
    return last_timer;
  }
  void cancel(uint64_t timer) override {
    std::erase_if(timers, [&](const auto& t) { return t.second.first == timer; });
  }
  void own_fd(int) noexcept override {}
  void disown_fd(int) noexcept override {}
  void post(adverb::service::Job& job) override { jobs.push_back(&job); }
  void poll(adverb::service::Poller&) override {} // there is none here
  bool on_thread() const noexcept override { return true; }
  bool short_of_cpu() noexcept override { return is_short; }

  Clock& clock;
  bool is_short = false; // of the processor
  std::deque<std::function<void()>> tasks;
  std::vector<adverb::service::Job*> jobs;
  std::multimap<std::chrono::nanoseconds, std::pair<uint64_t, std::function<void()>>> timers;
  uint64_t last_timer = 0;
};

// Not a word, unless a schedule is replayed for a person.
struct Words final : adverb::observe::LogSink {
  void line(adverb::observe::LogLevel level, std::string_view text) noexcept override;
  bool loud = false;
};

// Extended completion queues are polled as the device polls them.
struct Edge final : adverb::model::Edge {
  adverb::provider::CqExOps patch_cq_ex(ibv_cq_ex*) override { return Fabric::poll_ops(); }
};

class Program {
public:
  // In cells of 8 bytes. What peers reach is `shared`; `own` is the program's buffers.
  static constexpr uint32_t shared_cells = 512;
  static constexpr uint32_t side_cells = 64; // of the shared ones the first, a region of their own
  static constexpr uint32_t counter_cells = 2; // of the shared ones the last, for atomics
  static constexpr uint32_t slots = 110;       // most programs use few of them
  static constexpr uint32_t few_slots = 36;
  static constexpr uint32_t near_slots = 4;
  static constexpr uint32_t receives_max = 3; // of a queue pair; slots are kept for them
  static constexpr uint32_t slot_cells = 160;
  static constexpr uint32_t inline_max = 64;  // bytes
  static constexpr uint32_t header_cells = 5; // of a datagram's receive the first: 40 bytes

  Program(uint32_t number, Choices& choices, Fabric& fabric, Net& net, Oracle& oracle,
          const adverb::policy::Policy& policy, bool loud);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // A queue pair, connected by connect() to one of the same type.
  void make_qp(ibv_qp_type type);
  // The n-th queue pairs of both.
  static void connect(Program& one, Program& other, size_t n);

  // Appends what it may do: its threads each one thing.
  void offer_own(Steps& steps);
  void offer_poll(Steps& steps);
  // From some moment on it neither polls nor sleeps, until wind_up() is called.
  void silence(Program& peer) {
    if (srq_ != nullptr)
      return; // none of its queue pairs could go
    silent_ = gives_up_ = peer.gives_up_ = true;
    last_polled_ = choices_.once_in(2) ? budget_ : choices_.between(0, budget_);
  }
  bool silent() const { return silent_; }
  // In the midst of the verb that ends a queue pair. Who is told meanwhile that there is none waits
  // 500 ms for its end, which no verb takes.
  bool is_taking_down() const {
    return std::ranges::any_of(queues_, [](const auto& q) { return q->leaving && !q->down; });
  }
  // All that peers have written, if it ever empties what they write to.
  void empty_all();
  // A minute in which nothing happens.
  void let_time_pass() { clock_.time += std::chrono::seconds(61); }
  // Takes what completes, and receives what comes, but posts no request.
  void wind_up();
  // It sleeps, and something is there: nobody has woken it.
  bool overslept();
  // The last time there was something.
  bool found_some() const noexcept { return found_some_; }
  void offer(Steps& steps);
  bool offer_late(Steps& steps);
  bool offer_soon(Steps& steps);
  // Of processes that link for themselves time is the same.
  std::chrono::nanoseconds now() const { return clock_.time; }
  void catch_up(std::chrono::nanoseconds now) { clock_.time = std::max(clock_.time, now); }
  std::chrono::nanoseconds next_timer() const {
    return service_.timers.empty() ? std::chrono::nanoseconds::max()
                                   : service_.timers.begin()->first;
  }
  // Posts nothing any more.
  bool done() const {
    return budget_ == 0 || (gives_up_ && fruitless_ > 20) ||
           std::ranges::all_of(queues_, [](const auto& queue) { return queue->failed; });
  }
  bool idle() const;
  std::vector<uint64_t> shared() const;
  void close();

  std::vector<std::string> trouble; // what a verb answered and should not have

private:
  struct Queue {
    ibv_qp* qp = nullptr;
    bool extended = false;
    Transport transport = Transport::rc;
    uint64_t settled = 0; // the moment it was seen in error, and with no receive under way
    uint32_t number = 0;
    Program* peer = nullptr;
    Queue* other = nullptr; // the peer's
    uint32_t qpn = 0;
    bool to_leave = false;
    bool leaving = false; // being taken down, or down
    bool down = false;    // and not connected anew
    uint32_t depth = 0;
    uint32_t open = 0;     // requests that may hold a place
    uint32_t receives = 0; // posted
    unsigned access = 0;   // that its peer has
    bool all_signaled = false;
    bool failed = false;           // known to be in error
    bool told = false;             // by a completion of a request
    std::vector<uint64_t> waiting; // ids of receives
    ibv_qp_init_attr init{};
    std::vector<uint64_t> order; // ids, oldest first, of those that hold a place
  };

  // Polled; or slept on, until an event lies on the channel.
  struct Completions {
    ibv_cq* cq = nullptr;
    bool extended = false;
    bool asleep = false;
    uint64_t emptied = 0; // the moment when the last poll began that found nothing
  };

  bool relaxed();
  Completions make_cq();
  void act();
  void create(Queue& queue);
  void move_up(Queue& queue);
  void take_down(Queue& queue);
  bool may_leave(Queue& queue);
  void put_in_error(Queue& queue);
  void register_all();
  void deregister_all();
  ibv_mr* register_shared();
  void renew_key();
  void ask_nonsense();
  bool end_old_key();
  void end_key(uint32_t key); // by which requests are under way
  void change_region();
  bool may_change_own();
  void take_shared_away();
  void take_own_away();
  void begin_change(void (Program::*change)());
  bool go_on_changing();
  void take_away();
  void look_at_leases();
  void look_at_own();
  bool give_back();
  bool is_away(uint32_t slot) const { return slot >= away_from_ && slot < away_to_; }
  uint64_t* shared_at(uint32_t cell) const; // as requests and regions name it
  uint64_t* own_at(const uint64_t* cell) const;
  bool may_lack() const { return fabric_.refuses || fabric_.crowded; }
  void poll();
  void post(Queue& queue);
  int give(Queue& queue, std::deque<ibv_send_wr>& list, ibv_send_wr*& bad);
  void give_back(Queue& queue, uint64_t id);
  void post_receive(Queue& queue);
  int poll(Completions& queue, int most);
  void fall_asleep(Completions& queue, bool yes);
  int poll_hastily(Completions& queue, uint64_t began);
  int take(const Completions& queue, int most);
  int take_extended(const Completions& queue, std::span<ibv_wc> wc);
  void look();
  void empty(uint32_t cell);
  bool fill(Queue& queue, Operation& operation, ibv_send_wr& wr, std::vector<ibv_sge>& sges);
  struct There {
    uint64_t address;
    uint32_t key;
  };
  There where(const Queue& queue, const Operation& operation);
  void spoil(const Operation& operation, ibv_sge& sge);
  ibv_send_wr* spoil(const Queue& queue, ibv_send_wr& wr);
  void on_request(Queue& queue, const ibv_wc& wc);
  void on_receive(Queue& queue, const ibv_wc& wc);
  void fails(Queue& queue);
  void request_failed(Queue& queue);
  bool recover(Queue& queue);
  void use(uint64_t id, uint32_t slot);
  void release(uint64_t id);
  ibv_sge element(uint32_t slot, uint32_t from, uint32_t bytes, bool inlined);
  bool follows_addresses(uint32_t key) const;
  uint64_t* cells_of(uint32_t slot);
  size_t kept_slots() const; // for receives to come

  const uint32_t number_;
  Choices& choices_;
  Fabric& fabric_;
  Habits habits_{choices_};
  Net& net_;
  Oracle& oracle_;
  Edge edge_;
  Clock clock_;
  Entropy entropy_;
  Service service_{clock_};
  std::shared_ptr<Mappings> mappings_;
  std::shared_ptr<Views> views_;
  std::shared_ptr<adverb::registration::Recalls> recalls_;
  Words words_;

public:
  adverb::World world;

private:
  adverb::model::Verbs verbs_{world};
  Pages& shared_pages_;
  Pages& own_pages_;
  std::span<uint64_t> shared_; // as it is kept: what it has taken away it does not touch itself
  std::span<uint64_t> own_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_mr* shared_mr_ = nullptr;
  uint64_t shift_ = 0; // of its addresses in requests
  ibv_mr* side_mr_ = nullptr;
  std::vector<ibv_mr*> counter_mrs_; // of the counters, beside the region that all is in
  // Which nobody is to use, for all of that memory; null if this program does nothing wrong.
  ibv_pd* other_pd_ = nullptr;
  ibv_mr* others_mr_ = nullptr;     // of the shared memory in another protection domain
  ibv_mr* others_own_mr_ = nullptr; // of its own
  ibv_mr* readable_mr_ = nullptr;   // of the shared memory, which peers may only read
  ibv_mr* sealed_mr_ = nullptr;     // of its own, which no device may write to
  std::vector<ibv_mr*> old_mrs_;    // of the same memory; no request is posted under their keys
  ibv_mr* own_mr_ = nullptr;
  ibv_mr* near_mr_ = nullptr; // of the first slots once more
  std::vector<Completions> cqs_;
  ibv_comp_channel channel_{};
  ibv_srq* srq_ = nullptr; // of its queue pairs, if any
  uint32_t srq_open_ = 0;
  std::vector<std::unique_ptr<Queue>> queues_;
  uint64_t moment_ = 0;
  std::map<uint64_t, uint32_t> slots_; // of what is outstanding, by id
  std::set<uint64_t> past_;            // ids of what was outstanding when its queue pair went
  std::vector<uint32_t> free_;
  std::vector<uint32_t> users_ = std::vector<uint32_t>(slots); // of each slot
  uint64_t next_id_;
  uint64_t next_value_;
  bool found_some_ = false;
  bool silent_ = false;
  uint32_t last_polled_ = 0; // requests that are still to be posted when it falls silent
  bool gives_up_ = false;    // it or its peer is silent: there may never be room again
  uint32_t fruitless_ = 0;   // times in a row that it wanted to post, and had no room
  bool deep_;                // it may have more outstanding than a ring has slots at first
  bool sleeps_;              // on its channel, when it has found nothing
  bool hasty_;               // when it has found fewer than it asked for
  uint32_t budget_;          // requests still to be posted
  uint32_t renewals_;        // times the memory that peers reach may get another key
  bool abrupt_;              // the old one ends with requests outstanding
  uint32_t changes_;         // times a region may be changed by ibv_rereg_mr
  const bool changes_at_all_ = changes_ != 0;
  bool changing_ = false; // while it is, nobody may use it
  bool near_changing_ = false;
  bool side_wide_ = false;
  bool near_wide_ = false;
  bool near_lent_ = false;
  bool near_offsets_ = false; // it is named by offsets, not by addresses
  // What it is about to do to its memory, once what peers have leased is back; null: nothing. When
  // that takes longer than so many looks it goes on: does without, or takes memory away all the
  // same.
  void (Program::*next_change_)() = nullptr;
  uint32_t looks_ = 0;
  uint32_t patience_;
  bool late_ = false;    // while it does what peers that have not given back may not have heard of
  uint32_t losses_;      // times a piece of its memory may be taken away
  bool hurries_ = false; // to do so, as a queue pair of its peer's is in error
  bool shared_away_ = false; // a piece of it
  uint32_t away_from_ = 0;   // of its own: slots
  uint32_t away_to_ = 0;     // not this one
  bool mailbox_;             // it takes out what it finds in its memory
  bool odd_;                 // it asks for what no verb gives
  uint32_t downs_;           // times a queue pair may be taken down
  uint32_t wrong_;           // one in so many requests must be refused; 0: none
};

} // namespace sim
