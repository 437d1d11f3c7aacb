// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The monitor of hosts with adverb.ko, which this needs: test/kernel/monitor.sh runs it.
#include "catch.h"
#include "memory/module_monitor.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using namespace adverb::memory;

constexpr size_t page = 4096;
constexpr size_t bytes = 64 * page;

Range range_of(const void* at, size_t length) {
  const auto from = reinterpret_cast<uintptr_t>(at);
  return {from, from + length};
}

struct Watched {
  std::vector<int> owned;
  std::string why;
  std::atomic<Stripes> before{0};
  std::function<void()> recall = [] {};
  std::unique_ptr<ModuleMonitor> monitor = ModuleMonitor::open(
      {[this](int fd) { owned.push_back(fd); }, [this](const std::string& w) { why = w; },
       [this](Stripes where) {
         before |= where;
         recall();
       }},
      std::chrono::seconds(10));
  uint64_t seen = 0;

  Watched() { REQUIRE(monitor != nullptr); }
  bool watch(Range range) { return monitor->watch(range, range); }
  // That `change` is heard of, and of that range, by whoever asks when it has returned.
  bool hears(Range range, const std::function<void()>& change) {
    monitor->news(seen, [](const Range&, bool) {});
    const uint64_t epoch = monitor->epoch();
    const uint64_t told = monitor->told();
    change();
    const bool other = monitor->epoch() != epoch;
    bool met = false;
    monitor->news(seen, [&](const Range& heard, bool) { met = met || heard.meets(range); });
    CHECK(met == other);
    // What was cleared within a second counts as about to be, too.
    CHECK((!met || monitor->has_changed(range, told)));
    return met;
  }
};

char* fresh(int flags = MAP_PRIVATE | MAP_ANONYMOUS, int fd = -1, size_t length = bytes) {
  void* p = mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, fd, 0);
  REQUIRE(p != MAP_FAILED);
  memset(p, 1, length);
  return static_cast<char*>(p);
}

} // namespace

TEST_CASE("the module's monitor hears each call when it has returned") {
  Watched w;
  char* p = fresh();
  const Range all = range_of(p, bytes);
  REQUIRE(w.watch(all));
  CHECK(w.owned.size() == 2); // the module's, and the one by which the reader ends
  CHECK(w.hears(range_of(p, page), [&] { madvise(p, page, MADV_DONTNEED); }));
  CHECK(w.before.exchange(0) == stripes_of(range_of(p, page)));
  CHECK(w.hears(range_of(p + page, page), [&] { mprotect(p + page, page, PROT_READ); }));
  CHECK(w.hears(range_of(p + page, page), [&] { munmap(p + page, page); }));
  CHECK(w.hears(range_of(p + 2 * page, page), [&] {
    CHECK(mmap(p + 2 * page, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          p + 2 * page);
  }));
  CHECK(w.hears(range_of(p + 4 * page, page), [&] {
    CHECK(mremap(p + 4 * page, 2 * page, 4 * page, MREMAP_MAYMOVE) != MAP_FAILED);
  }));
  char* other = fresh();
  CHECK_FALSE(w.hears(all, [&] { munmap(other, bytes); }));
  CHECK(w.hears(all, [&] { munmap(p, bytes); }));
  w.monitor->unwatch(all);
  // What comes later to the same addresses is nobody's business now.
  char* again = static_cast<char*>(mmap(p, bytes, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
  REQUIRE(again == p);
  memset(p, 1, bytes);
  CHECK_FALSE(w.hears(all, [&] { munmap(p, bytes); }));
}

TEST_CASE("the module's monitor hears what is done to files") {
  Watched w;
  const int memory = memfd_create("monitor", MFD_CLOEXEC);
  REQUIRE(ftruncate(memory, bytes) == 0);
  char* p = fresh(MAP_SHARED, memory);
  REQUIRE(w.watch(range_of(p, bytes)));
  CHECK(w.hears(range_of(p + page, page), [&] {
    fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page, page);
  }));
  CHECK(w.hears(range_of(p + bytes / 2, page), [&] { CHECK(ftruncate(memory, bytes / 2) == 0); }));
  munmap(p, bytes);
  FILE* file = tmpfile();
  REQUIRE(file != nullptr);
  REQUIRE(ftruncate(fileno(file), bytes) == 0);
  char* own = fresh(MAP_PRIVATE, fileno(file));
  REQUIRE(w.watch(range_of(own, bytes)));
  CHECK(w.hears(range_of(own, page), [&] { munmap(own, page); }));
  munmap(own, bytes);
  fclose(file);
  close(memory);
}

TEST_CASE("ranges that are watched more than once are until nobody wants them") {
  Watched w;
  char* p = fresh();
  const Range all = range_of(p, bytes);
  const auto clear = [&] { madvise(p, bytes, MADV_DONTNEED); };
  REQUIRE(w.watch(all));
  REQUIRE(w.watch(range_of(p + 1, bytes - 2))); // the same pages
  w.monitor->unwatch(all);
  memset(p, 1, bytes);
  CHECK(w.hears(all, clear));
  w.monitor->unwatch(range_of(p + 1, bytes - 2));
  memset(p, 1, bytes);
  CHECK_FALSE(w.hears(all, clear));
  w.monitor->unwatch(all); // of nobody
  CHECK_FALSE(w.watch({}));
  CHECK_FALSE(w.watch({UINTPTR_MAX - page, UINTPTR_MAX}));
  munmap(p, bytes);
}

// What leases wait for is done before the caller goes on, with no lock that a page fault or another
// thread's mmap() would wait for.
TEST_CASE("a change waits for what is called back, and keeps nobody else from the address space") {
  Watched w;
  char* p = fresh();
  std::atomic<bool> recalled{false};
  std::atomic<bool> mapped{false};
  std::thread other;
  w.recall = [&] {
    while (!mapped) // by the other thread, while the caller waits
      std::this_thread::yield();
    recalled = true;
  };
  std::atomic<bool> begun{false};
  // Not what would lie where `p` was.
  other = std::thread([&, beside = fresh()] {
    while (!begun || w.before == 0)
      std::this_thread::yield();
    mprotect(beside, page, PROT_READ);
    munmap(beside, bytes);
    mapped = true;
  });
  REQUIRE(w.watch(range_of(p, bytes)));
  begun = true;
  munmap(p, bytes);
  CHECK(recalled);
  other.join();
}

TEST_CASE("changes of many threads are all heard of") {
  Watched w;
  constexpr size_t threads = 8;
  char* p = fresh();
  std::atomic<int> missed{0};
  std::vector<std::thread> all;
  REQUIRE(w.watch(range_of(p, bytes)));
  for (size_t t = 0; t < threads; ++t)
    all.emplace_back([&, mine = p + t * (bytes / threads)] {
      const Range range = range_of(mine, bytes / threads);
      for (int i = 0; i < 300; ++i) {
        *static_cast<volatile char*>(mine) = 1;
        const uint64_t told = w.monitor->told();
        madvise(mine, bytes / threads, MADV_DONTNEED);
        missed += w.monitor->has_changed(range, told) ? 0 : 1;
      }
    });
  for (auto& thread : all)
    thread.join();
  CHECK(missed == 0);
  munmap(p, bytes);
}

TEST_CASE("a fork child has no part in its parent's monitor") {
  Watched w;
  char* p = fresh();
  REQUIRE(w.watch(range_of(p, bytes)));
  const uint64_t epoch = w.monitor->epoch();
  const pid_t child = fork();
  if (child == 0) { // it has a copy of all of it, and no reader
    munmap(p, bytes);
    _exit(w.monitor->epoch() == epoch ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(w.monitor->epoch() == epoch);
  munmap(p, bytes);
}
