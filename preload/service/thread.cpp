// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "service/thread.h"
#include "world/world.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <pthread.h>
#include <sched.h>
#include <span>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <utility>
#include <vector>

namespace adverb::service {

using std::chrono::nanoseconds;

// The thread's state: abandoned as a whole in a fork child.
class Thread::Loop {
public:
  explicit Loop(Thread& owner);
  void watch(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  void change(int fd, uint32_t events) const;
  void unwatch(int fd);
  void run(std::function<void()> task);
  uint64_t after(nanoseconds delay, std::function<void()> task);
  void cancel(uint64_t timer);

  // The one that the calling thread serves; null: none.
  static const Loop*& here() noexcept { return ThreadLocal<const Loop*, Loop>::get(); }

  bool due() noexcept;

private:
  void wake();
  void serve();
  std::optional<nanoseconds> timeout();
  int wait(std::span<epoll_event> events, std::optional<nanoseconds> most);
  void serve_descriptors(std::optional<nanoseconds> most);
  void serve_tasks();
  template <typename F, typename... Args> void guarded(F& f, Args... args) noexcept;

  World& world_;
  int epoll_;
  int event_;
  Mutex lock_;
  std::unordered_map<int, std::shared_ptr<std::function<void(uint32_t)>>> watched_;
  std::map<std::pair<nanoseconds, uint64_t>, std::function<void()>> timers_; // by time and number
  std::unordered_map<uint64_t, nanoseconds> times_;                          // by number
  std::vector<std::function<void()>> tasks_;
  uint64_t next_timer_ = 1;
  bool awake_ = true; // looks at tasks and timers before it sleeps
  bool fine_ = true;  // epoll_pwait2 is known to the kernel
};

Thread::Loop::Loop(Thread& owner)
    : world_(owner.world_), epoll_(epoll_create1(EPOLL_CLOEXEC)),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  owner.own_fd(epoll_);
  owner.own_fd(event_);
  epoll_event ev{};
  ev.events = EPOLLIN;
  ev.data.fd = event_;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, event_, &ev);
  // The thread inherits the mask, so that no signal of the program ever meets it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS})
    sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread thread([this] { serve(); });
    pthread_setname_np(thread.native_handle(), "adverb");
    thread.detach();
  } catch (const std::system_error&) {
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (started)
    return;
  for (const int fd : {epoll_, event_}) {
    owner.disown_fd(fd);
    close(fd);
  }
  throw std::bad_alloc(); // ENOMEM is what verbs say where threads are short
}

// Under the lock, once there is something to look at.
void Thread::Loop::wake() {
  if (std::exchange(awake_, true))
    return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(event_, &one, sizeof one);
}

void Thread::Loop::watch(int fd, uint32_t events, std::function<void(uint32_t)> ready) {
  {
    const std::lock_guard hold(lock_);
    watched_[fd] = std::make_shared<std::function<void(uint32_t)>>(std::move(ready));
  }
  epoll_event ev{};
  ev.events = events;
  ev.data.fd = fd;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &ev);
}

void Thread::Loop::change(int fd, uint32_t events) const {
  epoll_event ev{};
  ev.events = events;
  ev.data.fd = fd;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &ev);
}

void Thread::Loop::unwatch(int fd) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  const std::lock_guard hold(lock_);
  watched_.erase(fd);
}

void Thread::Loop::run(std::function<void()> task) {
  const std::lock_guard hold(lock_);
  tasks_.push_back(std::move(task));
  wake();
}

uint64_t Thread::Loop::after(nanoseconds delay, std::function<void()> task) {
  const std::lock_guard hold(lock_);
  const uint64_t id = next_timer_++;
  const nanoseconds time = world_.clock.now() + delay;
  times_.emplace(id, time);
  try {
    const auto at = timers_.emplace(std::pair{time, id}, std::move(task)).first;
    if (at == timers_.begin())
      wake(); // it sleeps until a later one
  } catch (...) {
    times_.erase(id);
    throw;
  }
  return id;
}

void Thread::Loop::cancel(uint64_t timer) {
  const std::lock_guard hold(lock_);
  const auto at = times_.find(timer);
  if (at == times_.end())
    return;
  timers_.erase({at->second, timer});
  times_.erase(at);
}

bool Thread::Loop::due() noexcept {
  const std::lock_guard hold(lock_);
  return !tasks_.empty() ||
         (!timers_.empty() && timers_.begin()->first.first <= world_.clock.now());
}

template <typename F, typename... Args> void Thread::Loop::guarded(F& f, Args... args) noexcept {
  try {
    f(args...);
  } catch (const std::exception& e) {
    world_.counters.count(observe::Counter::exceptions_caught);
    world_.log.error("internal error in the service thread: {}", e.what());
  }
}

// How long nothing is due, if anything ever is; from here on it has to be woken.
std::optional<nanoseconds> Thread::Loop::timeout() {
  const std::lock_guard hold(lock_);
  if (!tasks_.empty())
    return nanoseconds{0};
  if (timers_.empty()) {
    awake_ = false;
    return std::nullopt;
  }
  const nanoseconds left = timers_.begin()->first.first - world_.clock.now();
  awake_ = left <= nanoseconds{0};
  return std::max(left, nanoseconds{0});
}

// epoll_pwait2(2), which knows less than a millisecond, is Linux 5.11's.
int Thread::Loop::wait(std::span<epoll_event> events, std::optional<nanoseconds> most) {
  const auto room = static_cast<int>(events.size());
  if (fine_) {
    timespec time{};
    if (most) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(*most);
      time = {seconds.count(), (*most - seconds).count()};
    }
    const int n = epoll_pwait2(epoll_, events.data(), room, most ? &time : nullptr, nullptr);
    if (n >= 0 || errno != ENOSYS)
      return n;
    fine_ = false;
  }
  const auto milliseconds =
      most ? static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(*most).count()) : -1;
  return epoll_wait(epoll_, events.data(), room, milliseconds);
}

void Thread::Loop::serve_descriptors(std::optional<nanoseconds> most) {
  std::array<epoll_event, 32> events;
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

void Thread::Loop::serve_tasks() {
  std::vector<std::function<void()>> due;
  {
    const std::lock_guard hold(lock_);
    awake_ = true;
    due.swap(tasks_);
    const auto now = world_.clock.now();
    while (!timers_.empty() && timers_.begin()->first.first <= now) {
      due.push_back(std::move(timers_.begin()->second));
      times_.erase(timers_.begin()->first.second);
      timers_.erase(timers_.begin());
    }
  }
  for (auto& task : due)
    guarded(task);
}

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

void Thread::Loop::serve() {
  here() = this;
  ask_for_short_slices();
  for (;;) {
    serve_descriptors(timeout());
    serve_tasks();
  }
}

Thread::Loop& Thread::loop() {
  if (Loop* running = loop_.load(std::memory_order_acquire))
    return *running;
  const std::lock_guard hold(starting_);
  if (loop_.load() == nullptr)
    loop_.store(new Loop(*this), std::memory_order_release); // lives as long as the process
  return *loop_.load();
}

void Thread::watch(int fd, uint32_t events, std::function<void(uint32_t)> ready) {
  own_fd(fd);
  loop().watch(fd, events, std::move(ready));
}

void Thread::change(int fd, uint32_t events) {
  loop().change(fd, events);
}

void Thread::unwatch(int fd) {
  loop().unwatch(fd);
  disown_fd(fd);
}

void Thread::run(std::function<void()> task) {
  loop().run(std::move(task));
}

uint64_t Thread::after(nanoseconds delay, std::function<void()> task) {
  return loop().after(delay, std::move(task));
}

void Thread::cancel(uint64_t timer) {
  loop().cancel(timer);
}

bool Thread::due() noexcept {
  return loop().due();
}

bool Thread::on_thread() const noexcept {
  const Loop* here = Loop::here();
  return here != nullptr && here == loop_.load(std::memory_order_acquire);
}

void Thread::own_fd(int fd) noexcept {
  if (fd >= 0 && static_cast<size_t>(fd) < fds_max)
    owned_[static_cast<size_t>(fd) / 64].fetch_or(uint64_t{1} << (fd % 64));
}

void Thread::disown_fd(int fd) noexcept {
  if (fd >= 0 && static_cast<size_t>(fd) < fds_max)
    owned_[static_cast<size_t>(fd) / 64].fetch_and(~(uint64_t{1} << (fd % 64)));
}

void Thread::in_child() noexcept {
  for (size_t word = 0; word < owned_.size(); ++word) {
    uint64_t bits = owned_[word].exchange(0);
    for (int bit = 0; bits != 0; ++bit, bits >>= 1)
      if ((bits & 1) != 0)
        close(static_cast<int>(word * 64) + bit);
  }
  loop_.store(nullptr);
  renew(starting_);
}

} // namespace adverb::service
