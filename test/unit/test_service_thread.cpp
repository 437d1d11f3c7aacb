// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The service: what it is given runs, and in which order, also while a job sleeps; and a process
// that may have no more threads.
#include "catch.h"
#include "service/relay.h"
#include "service/thread.h"
#include "stopped_clock.h"
#include "world/clock.h"
#include "world/entropy.h"
#include "world/world.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <dlfcn.h>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <pthread.h>
#include <semaphore>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <vector>

namespace {

bool no_threads = false;

struct Whole {
  adverb::test::StoppableClock clock;
  adverb::KernelEntropy entropy;
  adverb::service::Thread thread{world};
  adverb::World world{{.clock = clock, .entropy = entropy, .service = thread}};
};

size_t descriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                           std::filesystem::directory_iterator()));
}

} // namespace

// In the place of libc's.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attr, void* (*run)(void*),
                              void* with) {
  using Real = decltype(&pthread_create);
  static const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "pthread_create"));
  return no_threads ? EAGAIN : real(thread, attr, run, with);
}

TEST_CASE("a thread that cannot be had leaves signals and descriptors alone", "[service]") {
  auto& whole = *new Whole; // lives as long as the process, as the thread does
  const size_t before = descriptors();
  no_threads = true;
  CHECK_THROWS_AS(whole.thread.run([] {}), std::bad_alloc);
  no_threads = false;
  CHECK(descriptors() == before);
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  CHECK(sigismember(&now, SIGTERM) == 0);
  std::promise<void> ran;
  whole.thread.run([&ran] { ran.set_value(); });
  ran.get_future().wait();
}

TEST_CASE("timers run by their time, and not when they were cancelled", "[service]") {
  using namespace std::chrono_literals;
  auto& whole = *new Whole;
  std::string order;
  std::promise<void> last;
  whole.clock.stop(); // so that all are given at one time
  whole.thread.after(3ms, [&] {
    order += 'd';
    last.set_value();
  });
  const uint64_t second = whole.thread.after(2ms, [&] { order += 'c'; });
  whole.thread.after(1ms, [&] { order += 'a'; });
  whole.thread.after(1ms, [&] { order += 'b'; });
  whole.thread.cancel(second);
  whole.thread.cancel(second);
  whole.thread.cancel(0);
  whole.clock.go_on();
  last.get_future().wait();
  CHECK(order == "abd");
}

// It is woken only when it sleeps, and must not miss that it was to be.
TEST_CASE("no task is left behind, whoever gives it and when", "[service]") {
  auto& whole = *new Whole;
  constexpr int rounds = 20'000;
  for (int i = 0; i < rounds; ++i) {
    std::promise<void> done;
    whole.thread.run([&] {
      if (i % 2 == 0)
        whole.thread.run([&] { done.set_value(); }); // of its own
      else
        done.set_value();
    });
    done.get_future().wait();
  }
}

namespace {

// Sleeps until it is woken; how many threads do, and that somebody else goes on, is seen from
// outside.
struct Sleeper final : adverb::service::Job {
  void run() override {
    begun.set_value();
    woken.get_future().wait();
    ended.set_value();
  }
  std::promise<void> begun;
  std::promise<void> woken;
  std::promise<void> ended;
};

struct Short final : adverb::service::Job {
  explicit Short(std::function<void()> what) : what(std::move(what)) {}
  void run() override { what(); }
  std::function<void()> what;
};

// A task, a timer, a descriptor and a poller are served.
void check_served(adverb::service::Thread& thread) {
  using namespace std::chrono_literals;
  std::promise<void> task;
  std::promise<void> timer;
  std::promise<void> descriptor;
  thread.run([&] {
    CHECK(thread.on_thread());
    task.set_value();
  });
  thread.after(1us, [&] { timer.set_value(); });
  const int fd = eventfd(1, EFD_CLOEXEC);
  thread.watch(fd, EPOLLIN, [&](uint32_t) {
    thread.unwatch(fd);
    descriptor.set_value();
  });
  for (auto* const what : {&task, &timer, &descriptor})
    what->get_future().wait();
  close(fd);
}

size_t threads() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                           std::filesystem::directory_iterator()));
}

} // namespace

TEST_CASE("while a job sleeps all else goes on, other jobs too", "[service]") {
  auto& whole = *new Whole;
  Sleeper sleeper;
  whole.thread.post(sleeper);
  sleeper.begun.get_future().wait();
  check_served(whole.thread);
  std::promise<void> ran;
  Short other([&] { ran.set_value(); });
  whole.thread.post(other);
  ran.get_future().wait();
  sleeper.woken.set_value();
  sleeper.ended.get_future().wait();
  check_served(whole.thread);
}

TEST_CASE("as many jobs sleep as may, the next waits, and the service goes on", "[service]") {
  auto& whole = *new Whole;
  constexpr size_t most = adverb::service::Relay::asleep_max;
  const size_t before = threads();
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<Sleeper>> sleepers;
    for (size_t i = 0; i < most; ++i) {
      sleepers.push_back(std::make_unique<Sleeper>());
      whole.thread.post(*sleepers.back());
      sleepers.back()->begun.get_future().wait();
    }
    check_served(whole.thread);
    std::promise<void> ran;
    auto waits = ran.get_future();
    Short next([&] { ran.set_value(); });
    whole.thread.post(next);
    check_served(whole.thread);
    check_served(whole.thread);
    CHECK(waits.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
    // Who leads, who watches, spare ones; one that is not needed after all goes by and by.
    for (int i = 0; i < 120'000 && threads() > before + most + 4; ++i) // a watchdog of two minutes
      usleep(1000);
    CHECK(threads() <= before + most + 4);
    sleepers[5]->woken.set_value();
    waits.wait();
    sleepers[5]->ended.get_future().wait();
    for (size_t i = 0; i < most; ++i)
      if (i != 5) {
        sleepers[i]->woken.set_value();
        sleepers[i]->ended.get_future().wait();
      }
  }
}

// A thread that was preempted looks like one that sleeps, so some are overtaken here now and then.
TEST_CASE("each job runs once, whoever runs it", "[service]") {
  auto& whole = *new Whole;
  constexpr size_t count = 20'000;
  std::vector<std::atomic<int>> runs(count);
  std::vector<std::unique_ptr<Short>> all;
  std::atomic<size_t> ran{0};
  std::promise<void> done;
  for (size_t i = 0; i < count; ++i)
    all.push_back(std::make_unique<Short>([&, i] {
      ++runs[i];
      if (++ran == count)
        done.set_value();
    }));
  for (const auto& job : all)
    whole.thread.post(*job);
  done.get_future().wait();
  check_served(whole.thread);
  CHECK(std::ranges::all_of(runs, [](const auto& n) { return n == 1; }));
}

TEST_CASE("who looks is asked again until it has enough, and anew after a job", "[service]") {
  struct Looker final : adverb::service::Poller {
    bool look(bool) override {
      if (++looks % 100 != 0)
        return true;
      enough.release();
      return false;
    }
    int looks = 0;
    std::counting_semaphore<16> enough{0};
  };
  auto& whole = *new Whole;
  auto& looker = *new Looker;
  whole.thread.run([&] { whole.thread.poll(looker); });
  check_served(whole.thread);
  looker.enough.acquire();
  Short job([] {});
  whole.thread.post(job);
  looker.enough.acquire();
  std::promise<int> looks;
  whole.thread.run([&] { looks.set_value(looker.looks); });
  CHECK(looks.get_future().get() == 200);
}

TEST_CASE("without another thread to be had jobs run all the same", "[service]") {
  auto& whole = *new Whole;
  check_served(whole.thread);
  no_threads = true;
  for (int i = 0; i < 10; ++i) {
    std::promise<void> ran;
    Short job([&] { ran.set_value(); });
    whole.thread.post(job);
    ran.get_future().wait();
  }
  no_threads = false;
  check_served(whole.thread);
}
