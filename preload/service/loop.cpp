// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "service/loop.h"
#include "memory/own_fds.h"
#include "world/no_cancel.h"
#include "world/world.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <exception>
#include <new>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace adverb::service {
namespace {

using std::chrono::nanoseconds;

constexpr std::chrono::milliseconds descriptors_each{1}; // while something looks all the time
constexpr int jobs_at_once = 8;                          // then others have their turn

} // namespace

Loop::Loop(World& world, Service& owner)
    : world_(world), relay_(world, [this] { lead(); }),
      epoll_(own_fds::raised(epoll_create1(EPOLL_CLOEXEC))),
      event_(own_fds::raised(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
  owner.own_fd(epoll_);
  owner.own_fd(event_);
  epoll_event ev{};
  ev.events = EPOLLIN;
  ev.data.fd = event_;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, event_, &ev);
  if (relay_.start())
    return;
  for (const int fd : {epoll_, event_}) {
    owner.disown_fd(fd);
    own_fds::shut(fd);
  }
  throw std::bad_alloc(); // ENOMEM is what verbs say where threads are short
}

// Under the lock, once there is something to look at.
void Loop::wake() {
  if (std::exchange(awake_, true))
    return;
  const NoCancel whole;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(event_, &one, sizeof one);
}

void Loop::watch(int fd, uint32_t events, std::function<void(uint32_t)> ready) {
  {
    const std::lock_guard hold(lock_);
    watched_[fd] = std::make_shared<std::function<void(uint32_t)>>(std::move(ready));
  }
  epoll_event ev{};
  ev.events = events;
  ev.data.fd = fd;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &ev);
}

void Loop::change(int fd, uint32_t events) const {
  epoll_event ev{};
  ev.events = events;
  ev.data.fd = fd;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &ev);
}

void Loop::unwatch(int fd) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  const std::lock_guard hold(lock_);
  watched_.erase(fd);
}

void Loop::run(std::function<void()> task) {
  const std::lock_guard hold(lock_);
  tasks_.push_back(std::move(task));
  tasks_changed_.store(true);
  wake();
}

uint64_t Loop::after(nanoseconds delay, std::function<void()> task) {
  const std::lock_guard hold(lock_);
  const uint64_t id = next_timer_++;
  const nanoseconds time = world_.clock.now() + delay;
  times_.emplace(id, time);
  try {
    const auto at = timers_.emplace(std::pair{time, id}, std::move(task)).first;
    if (at == timers_.begin()) {
      tasks_changed_.store(true);
      wake(); // it sleeps until a later one
    }
  } catch (...) {
    times_.erase(id);
    throw;
  }
  return id;
}

void Loop::cancel(uint64_t timer) {
  const std::lock_guard hold(lock_);
  const auto at = times_.find(timer);
  if (at == times_.end())
    return;
  timers_.erase({at->second, timer});
  times_.erase(at);
}

void Loop::post(Job& job) noexcept {
  const std::lock_guard hold(lock_);
  jobs_.push(job);
  has_jobs_.store(true);
  wake();
}

void Loop::poll(Poller& poller) {
  for (Looking& one : pollers_)
    if (one.poller == &poller) {
      active_ += one.active ? 0 : 1;
      one.active = true;
      return;
    }
  pollers_.push_back({&poller, true});
  ++active_;
}

template <typename F, typename... Args> void Loop::guarded(F& f, Args... args) noexcept {
  try {
    f(args...);
  } catch (const std::exception& e) {
    world_.counters.count(observe::Counter::exceptions_caught);
    world_.log.error("internal error in the service thread: {}", e.what());
  }
}

// How long nothing is due, if anything ever is; from here on it has to be woken.
std::optional<nanoseconds> Loop::timeout() {
  const std::lock_guard hold(lock_);
  count_ended();
  if (!tasks_.empty() || (relay_.may_run() && jobs_.ready()))
    return nanoseconds{0};
  if (timers_.empty()) {
    awake_ = false;
    return std::nullopt;
  }
  const nanoseconds left = timers_.begin()->first.first - world_.clock.now();
  awake_ = left <= nanoseconds{0};
  return std::max(left, nanoseconds{0});
}

// epoll_pwait2(2), which knows less than a millisecond, is Linux 5.11's, and filters of system
// calls (seccomp) that do not know it answer as they like.
int Loop::wait(std::span<epoll_event> events, std::optional<nanoseconds> most) {
  const auto room = static_cast<int>(events.size());
  if (fine_) {
    timespec time{};
    if (most) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(*most);
      time = {seconds.count(), (*most - seconds).count()};
    }
    const int n = epoll_pwait2(epoll_, events.data(), room, most ? &time : nullptr, nullptr);
    if (n >= 0 || errno == EINTR)
      return n;
    fine_ = false;
  }
  const auto milliseconds =
      most ? static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(*most).count()) : -1;
  return epoll_wait(epoll_, events.data(), room, milliseconds);
}

void Loop::serve_descriptors(std::optional<nanoseconds> most) {
  // Few: pollers look between two calls, and the kernel has who was not told wait in line.
  std::array<epoll_event, 4> events;
  const int n = wait(events, most);
  for (int i = 0; i < n; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.fd == event_) {
      uint64_t ticks = 0;
      [[maybe_unused]] const ssize_t r = read(event_, &ticks, sizeof ticks);
      continue;
    }
    std::shared_ptr<std::function<void(uint32_t)>> ready;
    {
      const std::lock_guard hold(lock_);
      const auto it = watched_.find(event.data.fd);
      if (it != watched_.end())
        ready = it->second;
    }
    if (ready)
      guarded(*ready, event.events);
  }
}

void Loop::serve_tasks() {
  std::vector<std::function<void()>> due;
  {
    const std::lock_guard hold(lock_);
    awake_ = true;
    tasks_changed_.store(false);
    due.swap(tasks_);
    const auto now = world_.clock.now();
    while (!timers_.empty() && timers_.begin()->first.first <= now) {
      due.push_back(std::move(timers_.begin()->second));
      times_.erase(timers_.begin()->first.second);
      timers_.erase(timers_.begin());
    }
    timer_at_ = timers_.empty() ? nanoseconds::max() : timers_.begin()->first.first;
  }
  for (auto& task : due)
    guarded(task);
}

// What throws looks no more, until it is told to again.
bool Loop::looks(Poller& poller, bool after_job) noexcept {
  bool again = false;
  auto once = [&] { again = poller.look(after_job); };
  guarded(once);
  return again;
}

void Loop::look() {
  const bool after_job = std::exchange(job_run_, false);
  for (Looking& one : pollers_)
    if (one.active && !looks(*one.poller, after_job)) {
      one.active = false;
      --active_;
    }
}

// Under the lock.
void Loop::count_ended() noexcept {
  if (ended_)
    jobs_.end(*ended_);
  ended_.reset();
}

// False: this thread leads no longer, and touches nothing here any more.
bool Loop::serve_jobs() {
  for (int i = 0; i < jobs_at_once && has_jobs_.load(); ++i) {
    Jobs::Begun begun;
    {
      const std::lock_guard hold(lock_);
      count_ended();
      if (!relay_.may_run())
        return true;
      begun = jobs_.begin();
      has_jobs_.store(!jobs_.empty());
      if (begun.job == nullptr)
        return true;
    }
    if (!relay_.run(*begun.job)) {
      const std::lock_guard hold(lock_);
      jobs_.end(begun.party);
      wake(); // as many slept, perhaps, as may
      return false;
    }
    ended_ = std::move(begun.party);
    job_run_ = true;
    for (Looking& one : pollers_) {
      active_ += one.active ? 0 : 1;
      one.active = true;
    }
  }
  return true;
}

void Loop::lead() {
  do {
    const auto now = world_.clock.now();
    const bool looks_at_all = active_ == 0 || now - descriptors_at_ >= descriptors_each;
    if (looks_at_all) {
      serve_descriptors(active_ == 0 ? timeout() : nanoseconds{0});
      descriptors_at_ = now;
    }
    share_.look(now);
    if (looks_at_all || tasks_changed_.load() || now >= timer_at_)
      serve_tasks();
    look();
  } while (serve_jobs());
}

} // namespace adverb::service
