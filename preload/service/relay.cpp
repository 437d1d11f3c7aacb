// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "service/relay.h"
#include "memory/own_thread.h"
#include "world/world.h"

#include <ctime>
#include <exception>
#include <mutex>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace adverb::service {
namespace {

// A mark that has stood for so long is too old. It is found by the next look, and each look takes a
// processor from somebody: while jobs follow each other that is felt, on two of them as much as a
// tenth of it at four looks a millisecond.
constexpr std::chrono::microseconds too_old{100};
constexpr long look_each = 500'000; // ns
constexpr unsigned looks_in_vain = 4;
constexpr size_t spares_max = 2; // more threads end

// What runs here is short, and somebody waits for it, perhaps on all processors: with the shortest
// slice it is run soon after it was woken (Linux 6.12 on; those before take no notice).
void ask_for_short_slices() {
  struct Attributes { // sched_setattr(2), which the C library of some years has not
    uint32_t size;
    uint32_t policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime; // nanoseconds
    uint64_t deadline;
    uint64_t period;
  } attributes{};
  constexpr uint64_t shortest = 100'000;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0 ||
      attributes.policy != SCHED_OTHER)
    return;
  attributes.runtime = shortest;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

} // namespace

Relay::Relay(World& world, std::function<void()> lead) : world_(world), lead_(std::move(lead)) {
  spares_.reserve(spares_max);
}

bool Relay::start_thread(void (Relay::*main)()) {
  memory::OwnThread thread;
  if (thread.start("adverb", [this, main] {
        ask_for_short_slices();
        (this->*main)();
      }) != 0)
    return false;
  thread.detach();
  return true;
}

bool Relay::start() {
  return start_thread(&Relay::serve);
}

bool Relay::leads() const noexcept {
  const Runner* const me = here();
  return me != nullptr && me->relay == this && leader_.load() == me;
}

void Relay::serve() {
  const Runner me{this};
  here() = &me;
  for (;;) {
    {
      std::unique_lock hold(lock_);
      coming_ = false;
      if (leader_.load() == nullptr) {
        leader_.store(&me); // the first of all
      } else {
        if (spares_.size() == spares_max)
          return;
        spares_.push_back(&me);
        woken_.notify_all();
        woken_.wait(hold, [&] { return leader_.load() == &me; });
      }
    }
    lead_();
  }
}

bool Relay::run(Job& job) {
  uint64_t mark = mark_.load(std::memory_order_relaxed) + 1;
  since_.store(world_.clock.now());
  mark_.store(mark); // before it is known whether somebody looks
  if (!watched_.load())
    have_watched();
  try {
    job.run();
  } catch (const std::exception& e) {
    world_.counters.count(observe::Counter::exceptions_caught);
    world_.log.error("internal error in a job of the service: {}", e.what());
  }
  if (mark_.compare_exchange_strong(mark, mark + 1))
    return true;
  const std::lock_guard hold(lock_); // who took over has counted this thread by then
  --asleep_;
  return false;
}

// Where there can be no watcher now, there may be one in a second.
void Relay::have_watched() {
  const std::lock_guard hold(lock_);
  if (!has_watcher_) {
    const auto now = world_.clock.now();
    if (now < watcher_not_before_)
      return;
    watcher_not_before_ = now + std::chrono::seconds(1);
    has_watcher_ = start_thread(&Relay::watch);
  }
  if (!has_watcher_) {
    log_no_threads();
    return;
  }
  watched_.store(true);
  woken_.notify_all();
}

void Relay::log_no_threads() {
  if (world_.log.every("no threads", 60))
    world_.log.warn("no more threads can be had: while a page of this program's memory is slow to "
                    "come, adverb serves nothing else; raise RLIMIT_NPROC");
}

void Relay::watch() {
  for (;;) {
    {
      std::unique_lock hold(lock_);
      make_spare(hold);
      woken_.wait(hold, [this] { return watched_.load(); });
    }
    uint64_t last = mark_.load();
    for (unsigned in_vain = 0; in_vain < looks_in_vain;) {
      const timespec time{0, look_each};
      clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
      const uint64_t mark = mark_.load();
      in_vain = mark == last && mark % 2 == 0 ? in_vain + 1 : 0;
      if (mark % 2 != 0 && world_.clock.now() - since_.load() >= too_old)
        take_over(mark); // if it is of that mark, which stands then
      last = mark;
    }
    watched_.store(false);
    if (mark_.load() != last) // left before it could be known
      watched_.store(true);
  }
}

// One thread more than lead or sleep; what cannot be had now is tried again.
void Relay::make_spare(std::unique_lock<Mutex>& held) {
  if (!spares_.empty() || coming_)
    return;
  coming_ = true;
  held.unlock();
  const bool started = start_thread(&Relay::serve);
  held.lock();
  if (started)
    return;
  coming_ = false;
  log_no_threads();
}

void Relay::take_over(uint64_t mark) {
  std::unique_lock hold(lock_);
  if (asleep_.load() == asleep_max)
    return;
  if (spares_.empty())
    return make_spare(hold); // which is there at the next look
  if (!mark_.compare_exchange_strong(mark, mark + 1))
    return; // it has come to its end
  ++asleep_;
  leader_.store(spares_.back());
  spares_.pop_back();
  world_.counters.count(observe::Counter::service_relays);
  woken_.notify_all();
  make_spare(hold);
}

} // namespace adverb::service
