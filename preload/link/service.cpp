// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/service.h"
#include "observe/counters.h"
#include "observe/log.h"

#include <array>
#include <atomic>
#include <csignal>
#include <exception>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>

namespace adverb::link {
namespace {

// Read in a fork child, where no lock may be taken: one bit per descriptor.
constexpr size_t fds_max = 65536;
std::array<std::atomic<uint64_t>, fds_max / 64> owned;

std::atomic<Service*> instance{nullptr};
std::mutex starting;

} // namespace

void own_fd(int fd) noexcept {
  if (fd >= 0 && static_cast<size_t>(fd) < fds_max)
    owned[static_cast<size_t>(fd) / 64].fetch_or(uint64_t{1} << (fd % 64));
}

void disown_fd(int fd) noexcept {
  if (fd >= 0 && static_cast<size_t>(fd) < fds_max)
    owned[static_cast<size_t>(fd) / 64].fetch_and(~(uint64_t{1} << (fd % 64)));
}

Service& Service::get() {
  if (Service* s = instance.load(std::memory_order_acquire))
    return *s;
  const std::lock_guard hold(starting);
  if (instance.load() == nullptr)
    instance.store(new Service, std::memory_order_release); // lives as long as the process
  return *instance.load();
}

void Service::after_fork_child() {
  for (size_t word = 0; word < owned.size(); ++word) {
    uint64_t bits = owned[word].exchange(0);
    for (int bit = 0; bits != 0; ++bit, bits >>= 1)
      if ((bits & 1) != 0)
        close(static_cast<int>(word * 64) + bit);
  }
  instance.store(nullptr);
  new (&starting) std::mutex;
}

Service::Service()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  own_fd(epoll_);
  own_fd(event_);
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
  std::thread thread([this] { loop(); });
  pthread_setname_np(thread.native_handle(), "adverb");
  thread.detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Service::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(event_, &one, sizeof one);
}

void Service::watch(int fd, uint32_t events, std::function<void(uint32_t)> ready) {
  own_fd(fd);
  {
    const std::lock_guard hold(lock_);
    watched_[fd] = std::make_shared<std::function<void(uint32_t)>>(std::move(ready));
  }
  epoll_event ev{};
  ev.events = events;
  ev.data.fd = fd;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &ev);
}

void Service::change(int fd, uint32_t events) {
  epoll_event ev{};
  ev.events = events;
  ev.data.fd = fd;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &ev);
}

void Service::unwatch(int fd) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  disown_fd(fd);
  const std::lock_guard hold(lock_);
  watched_.erase(fd);
}

void Service::run(std::function<void()> task) {
  {
    const std::lock_guard hold(lock_);
    tasks_.push_back(std::move(task));
  }
  wake();
}

uint64_t Service::after(std::chrono::nanoseconds delay, std::function<void()> task) {
  uint64_t id = 0;
  {
    const std::lock_guard hold(lock_);
    id = next_timer_++;
    timers_.emplace(Clock::now() + delay, std::pair{id, std::move(task)});
  }
  wake();
  return id;
}

void Service::cancel(uint64_t timer) {
  const std::lock_guard hold(lock_);
  for (auto it = timers_.begin(); it != timers_.end(); ++it)
    if (it->second.first == timer) {
      timers_.erase(it);
      return;
    }
}

namespace {

template <typename F, typename... Args> void guarded(F& f, Args... args) noexcept {
  try {
    f(args...);
  } catch (const std::exception& e) {
    observe::count(observe::Counter::exceptions_caught);
    observe::log_error("internal error in the service thread: {}", e.what());
  }
}

} // namespace

void Service::loop() {
  std::array<epoll_event, 32> events;
  for (;;) {
    int timeout = -1;
    {
      const std::lock_guard hold(lock_);
      if (!tasks_.empty()) {
        timeout = 0;
      } else if (!timers_.empty()) {
        const auto left = timers_.begin()->first - Clock::now();
        timeout = static_cast<int>(
            std::max<int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(left).count()));
      }
    }
    const int n = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timeout);
    for (int i = 0; i < n; ++i) {
      if (events[static_cast<size_t>(i)].data.fd == event_) {
        uint64_t ticks = 0;
        [[maybe_unused]] const ssize_t r = read(event_, &ticks, sizeof ticks);
        continue;
      }
      std::shared_ptr<std::function<void(uint32_t)>> ready;
      {
        const std::lock_guard hold(lock_);
        const auto it = watched_.find(events[static_cast<size_t>(i)].data.fd);
        if (it != watched_.end())
          ready = it->second;
      }
      if (ready)
        guarded(*ready, events[static_cast<size_t>(i)].events);
    }
    std::vector<std::function<void()>> due;
    {
      const std::lock_guard hold(lock_);
      due.swap(tasks_);
      const auto now = Clock::now();
      while (!timers_.empty() && timers_.begin()->first <= now) {
        due.push_back(std::move(timers_.begin()->second.second));
        timers_.erase(timers_.begin());
      }
    }
    for (auto& task : due)
      guarded(task);
  }
}

} // namespace adverb::link
