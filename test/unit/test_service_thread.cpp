// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A process that may have no more threads: what it asked fails, and leaves it as it was.
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
