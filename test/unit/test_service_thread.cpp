// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The service thread: what it is given runs, and in which order; and a process that may have no
// more threads.
#include "catch.h"
#include "service/thread.h"
#include "world/clock.h"
#include "world/entropy.h"
#include "world/world.h"

#include <cerrno>
#include <csignal>
#include <dlfcn.h>
#include <filesystem>
#include <future>
#include <iterator>
#include <pthread.h>
#include <string>
#include <vector>

namespace {

bool no_threads = false;

struct Whole {
  adverb::SteadyClock clock;
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

TEST_CASE("who has more to do hears that others wait", "[service]") {
  using namespace std::chrono_literals;
  auto& whole = *new Whole;
  std::promise<void> done;
  std::vector<bool> due;
  whole.thread.run([&] {
    due.push_back(whole.thread.due());
    whole.thread.after(1h, [] {});
    due.push_back(whole.thread.due());
    whole.thread.after(0ns, [] {});
    due.push_back(whole.thread.due());
    whole.thread.run([&] {
      due.push_back(whole.thread.due());
      whole.thread.run([&] { done.set_value(); });
      due.push_back(whole.thread.due());
    });
  });
  done.get_future().wait();
  CHECK(due[0] == false);
  CHECK(due[1] == false);
  CHECK(due[2] == true);
  CHECK(due[4] == true);
}
